// Command franz runs the scenarios of tests/support/client_programs.py with franz-go.
package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"tidegate/clients/program"
)

func main() {
	program.Serve(func(bootstrap []string) map[string]func(program.Request) (any, error) {
		franz := franz{bootstrap}
		return map[string]func(program.Request) (any, error){
			"digest":     franz.digest,
			"timestamps": franz.timestamps,
			"group":      franz.group,
			"pause":      franz.pause,
			"reset":      franz.reset,
		}
	})
}

type franz struct{ bootstrap []string }

func (franz franz) client(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(franz.bootstrap...),
		kgo.FetchMaxWait(program.FetchMaxWait),
		kgo.FetchMaxPartitionBytes(program.PartitionBytesMax),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}, options...)...)
}

// reader consumes partitions from where a request says; a lost position is an error.
func (franz franz) reader(request program.Request, at map[int32]kgo.Offset) (*kgo.Client, error) {
	isolation := kgo.ReadUncommitted()
	if request.Isolation == "read_committed" {
		isolation = kgo.ReadCommitted()
	}
	return franz.client(append(signIn(request.Sasl),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{request.Topic: at}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(isolation),
	)...)
}

func signIn(sasl *program.Sasl) []kgo.Opt {
	if sasl == nil {
		return nil
	}
	secret := scram.Auth{User: sasl.Username, Pass: sasl.Password}
	switch sasl.Mechanism {
	case "SCRAM-SHA-256":
		return []kgo.Opt{kgo.SASL(secret.AsSha256Mechanism())}
	case "SCRAM-SHA-512":
		return []kgo.Opt{kgo.SASL(secret.AsSha512Mechanism())}
	}
	return []kgo.Opt{kgo.SASL(plain.Auth{User: sasl.Username, Pass: sasl.Password}.AsMechanism())}
}

// everywhere is one offset for all partitions.
func everywhere(request program.Request, offset kgo.Offset) map[int32]kgo.Offset {
	at := map[int32]kgo.Offset{}
	for partition := range request.Lasts {
		at[partition] = offset
	}
	return at
}

// poll hands on the records that come within the time given.
func poll(client *kgo.Client, within time.Duration, take func(program.Record)) error {
	deadline, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	fetches := client.PollFetches(deadline)
	for _, failed := range fetches.Errors() {
		if !errors.Is(failed.Err, context.DeadlineExceeded) {
			return failed.Err
		}
	}
	fetches.EachRecord(func(record *kgo.Record) {
		taken := program.Record{
			Partition:   record.Partition,
			Offset:      record.Offset,
			TimestampMs: record.Timestamp.UnixMilli(),
			Key:         record.Key,
			Value:       record.Value,
		}
		for _, header := range record.Headers {
			taken.Headers = append(taken.Headers, program.Header{Name: header.Key, Value: header.Value})
		}
		take(taken)
	})
	return nil
}

// pollUntil polls until it is done, or says that it has taken too long.
func pollUntil(done func() bool, clients func() []*kgo.Client, take func(program.Record)) error {
	deadline := time.Now().Add(program.ScenarioTimeout)
	for !done() {
		if time.Now().After(deadline) {
			return fmt.Errorf("no end in %v", program.ScenarioTimeout)
		}
		for _, client := range clients() {
			if err := poll(client, 50*time.Millisecond, take); err != nil {
				return err
			}
		}
	}
	return nil
}

func (franz franz) digest(request program.Request) (any, error) {
	client, err := franz.reader(request, everywhere(request, kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	digests := program.NewDigests(request.Partitions())
	if err := read(client, digests, func() bool { return digests.Reached(request.Lasts, nil) }); err != nil {
		return nil, err
	}
	err = poll(client, program.Linger, func(record program.Record) { digests[record.Partition].Add(record) })
	return map[string]any{"partitions": digests}, err
}

func read(client *kgo.Client, digests program.Digests, done func() bool) error {
	one := func() []*kgo.Client { return []*kgo.Client{client} }
	return pollUntil(done, one, func(record program.Record) { digests[record.Partition].Add(record) })
}

func (franz franz) timestamps(request program.Request) (any, error) {
	var found []any
	for _, timestampMs := range request.TimestampsMs {
		answer, err := franz.timestamp(request, timestampMs)
		if err != nil {
			return nil, err
		}
		found = append(found, answer)
	}
	return map[string]any{"found": found}, nil
}

// timestamp asks twice: for the offsets alone, and as a consumer that starts there.
func (franz franz) timestamp(request program.Request, timestampMs int64) (any, error) {
	client, err := franz.reader(request, everywhere(request, kgo.NewOffset().AfterMilli(timestampMs)))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	listed, err := kadm.NewClient(client).ListOffsetsAfterMilli(context.Background(), timestampMs, request.Topic)
	if err != nil {
		return nil, err
	}
	offsets, wanted := map[int32]int64{}, map[int32]int64{}
	for partition, last := range request.Lasts {
		offset, known := listed.Lookup(request.Topic, partition)
		if !known || offset.Err != nil {
			return nil, fmt.Errorf("partition %d: %v", partition, offset.Err)
		}
		offsets[partition] = offset.Offset
		wanted[partition] = min(request.Records, last-offset.Offset+1)
	}
	digests := program.NewDigests(request.Partitions())
	err = pollUntil(
		func() bool {
			for partition, digest := range digests {
				if digest.Records < wanted[partition] {
					return false
				}
			}
			return true
		},
		func() []*kgo.Client { return []*kgo.Client{client} },
		func(record program.Record) {
			if digest := digests[record.Partition]; digest.Records < request.Records {
				digest.Add(record)
			}
		},
	)
	return map[string]any{"timestamp_ms": timestampMs, "offsets": offsets, "partitions": digests}, err
}

// member is one of a group of two. Other goroutines say what it has been given.
type member struct {
	client *kgo.Client
	mutex  sync.Mutex
	has    []int32
}

func (franz franz) member(request program.Request) (*member, error) {
	joined := &member{}
	lost := func(ctx context.Context, client *kgo.Client, lost map[string][]int32) {
		joined.mutex.Lock()
		defer joined.mutex.Unlock()
		joined.has = slices.DeleteFunc(joined.has, func(partition int32) bool {
			return slices.Contains(lost[request.Topic], partition)
		})
	}
	client, err := franz.client(
		kgo.ConsumerGroup(request.Group),
		kgo.ConsumeTopics(request.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.HeartbeatInterval(200*time.Millisecond),
		kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, given map[string][]int32) {
			joined.mutex.Lock()
			defer joined.mutex.Unlock()
			joined.has = append(joined.has, given[request.Topic]...)
		}),
		kgo.OnPartitionsRevoked(func(ctx context.Context, client *kgo.Client, revoked map[string][]int32) {
			// A failed commit only means that the other member reads the same again.
			_ = client.CommitUncommittedOffsets(ctx)
			lost(ctx, client, revoked)
		}),
		kgo.OnPartitionsLost(lost),
	)
	joined.client = client
	return joined, err
}

func (member *member) partitions() []int32 {
	member.mutex.Lock()
	defer member.mutex.Unlock()
	sorted := slices.Clone(member.has)
	slices.Sort(sorted)
	return sorted
}

func (franz franz) group(request program.Request) (any, error) {
	records, all := program.Collected{}, request.Partitions()
	var members []*member
	clients := func() []*kgo.Client {
		var clients []*kgo.Client
		for _, member := range members {
			clients = append(clients, member.client)
		}
		return clients
	}
	defer func() {
		for _, member := range members {
			member.client.Close()
		}
	}()
	join := func() error {
		member, err := franz.member(request)
		if err == nil {
			members = append(members, member)
		}
		return err
	}
	hasAll := func() bool { return slices.Equal(members[0].partitions(), all) && len(records) > 0 }
	haveBoth := func() bool {
		first, second := members[0].partitions(), members[1].partitions()
		together := slices.Concat(first, second)
		slices.Sort(together)
		return len(first) > 0 && len(second) > 0 && slices.Equal(together, all)
	}
	if err := join(); err != nil {
		return nil, err
	}
	if err := pollUntil(hasAll, clients, records.Add); err != nil {
		return nil, fmt.Errorf("one member: %w", err)
	}
	if err := join(); err != nil {
		return nil, err
	}
	if err := pollUntil(haveBoth, clients, records.Add); err != nil {
		return nil, fmt.Errorf("two members: %w", err)
	}
	members[1].client.CloseAllowingRebalance()
	members = members[:1]
	over := func() bool { return hasAll() && records.HasLasts(request.Lasts) }
	if err := pollUntil(over, clients, records.Add); err != nil {
		return nil, fmt.Errorf("one member left: %w", err)
	}
	return map[string]any{"partitions": records.Digests(all)}, nil
}

func (franz franz) pause(request program.Request) (any, error) {
	client, err := franz.reader(request, everywhere(request, kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	digests := program.NewDigests(request.Partitions())
	begun := func() bool {
		return !slices.ContainsFunc(request.Paused, func(partition int32) bool { return digests[partition].Records == 0 })
	}
	if err := read(client, digests, begun); err != nil {
		return nil, err
	}
	paused := map[string][]int32{request.Topic: request.Paused}
	client.PauseFetchPartitions(paused)
	if err := read(client, digests, func() bool { return digests.Reached(request.Lasts, request.Paused) }); err != nil {
		return nil, err
	}
	stopped := !slices.ContainsFunc(request.Paused, func(partition int32) bool {
		return digests[partition].Last >= request.Lasts[partition]
	})
	client.ResumeFetchPartitions(paused)
	err = read(client, digests, func() bool { return digests.Reached(request.Lasts, nil) })
	return map[string]any{"stopped": stopped, "partitions": digests}, err
}

func (franz franz) reset(request program.Request) (any, error) {
	policies := map[string]kgo.Offset{
		"earliest": kgo.NewOffset().AtStart(),
		"latest":   kgo.NewOffset().AtEnd(),
		"none":     kgo.NoResetOffset(),
	}
	at := map[string]map[int32]kgo.Offset{request.Topic: {0: kgo.NewOffset().At(request.Offset)}}
	client, err := franz.client(kgo.ConsumePartitions(at), kgo.ConsumeResetOffset(policies[request.Policy]))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	first := int64(-1)
	for deadline := time.Now().Add(program.ScenarioTimeout); first < 0 && time.Now().Before(deadline); {
		err := poll(client, program.ProduceEvery, func(record program.Record) {
			if first < 0 {
				first = record.Offset
			}
		})
		if failed := (*kerr.Error)(nil); errors.As(err, &failed) {
			return map[string]any{"error": failed.Message}, nil
		} else if err != nil {
			return map[string]any{"error": fmt.Sprintf("%T", err)}, nil
		}
		record := &kgo.Record{Topic: request.Topic, Value: []byte("something new")}
		if err := client.ProduceSync(context.Background(), record).FirstErr(); first < 0 && err != nil {
			return nil, err
		}
	}
	return request.Reset(first), nil
}
