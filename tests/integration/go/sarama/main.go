// Command sarama runs the scenarios of tests/support/client_programs.py with sarama.
package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"tidegate/clients/program"
)

func main() {
	program.Serve(func(bootstrap []string) map[string]func(program.Request) (any, error) {
		client := client{bootstrap}
		return map[string]func(program.Request) (any, error){
			"digest":     client.digest,
			"timestamps": client.timestamps,
			"group":      client.group,
			"pause":      client.pause,
			"reset":      client.reset,
		}
	})
}

type client struct{ bootstrap []string }

func config(request program.Request) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.ChannelBufferSize = 1
	config.Consumer.Return.Errors = true
	config.Consumer.MaxWaitTime = program.FetchMaxWait
	config.Consumer.Fetch.Default = program.PartitionBytesMax
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	if request.Isolation == "read_committed" {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	if request.Sasl != nil {
		config.Net.SASL.Enable = true
		config.Net.SASL.Mechanism = sarama.SASLMechanism(request.Sasl.Mechanism)
		config.Net.SASL.User = request.Sasl.Username
		config.Net.SASL.Password = request.Sasl.Password
		config.Net.SASL.Version = request.Sasl.Handshake
		// sarama signs in by version 0 before it asks for anything.
		config.ApiVersionsRequest = request.Sasl.Handshake != sarama.SASLHandshakeV0
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient {
			return &scramClient{mechanism: request.Sasl.Mechanism}
		}
	}
	return config
}

// scramClient is SCRAM for sarama, which has none of its own, by franz-go's.
type scramClient struct {
	mechanism string
	session   sasl.Session
	first     []byte
	done      bool
}

func (client *scramClient) Begin(username, password, _ string) (err error) {
	secret := scram.Auth{User: username, Pass: password}
	mechanism := secret.AsSha512Mechanism()
	if client.mechanism == "SCRAM-SHA-256" {
		mechanism = secret.AsSha256Mechanism()
	}
	client.session, client.first, err = mechanism.Authenticate(context.Background(), "")
	return err
}

func (client *scramClient) Step(challenge string) (string, error) {
	if challenge == "" {
		return string(client.first), nil
	}
	done, answer, err := client.session.Challenge([]byte(challenge))
	client.done = done
	return string(answer), err
}

func (client *scramClient) Done() bool { return client.done }

func taken(message *sarama.ConsumerMessage) program.Record {
	record := program.Record{
		Partition:   message.Partition,
		Offset:      message.Offset,
		TimestampMs: message.Timestamp.UnixMilli(),
		Key:         message.Key,
		Value:       message.Value,
	}
	for _, header := range message.Headers {
		record.Headers = append(record.Headers, program.Header{Name: string(header.Key), Value: header.Value})
	}
	return record
}

// reader brings the messages and errors of many partitions together.
type reader struct {
	consumer   sarama.Consumer
	partitions map[int32]sarama.PartitionConsumer
	messages   chan *sarama.ConsumerMessage
	errors     chan error
}

// reader consumes partitions from the offsets given.
func (client client) reader(request program.Request, offsets map[int32]int64) (*reader, error) {
	consumer, err := sarama.NewConsumer(client.bootstrap, config(request))
	if err != nil {
		return nil, err
	}
	reader := &reader{
		consumer, map[int32]sarama.PartitionConsumer{}, make(chan *sarama.ConsumerMessage), make(chan error, 100),
	}
	for partition, offset := range offsets {
		consumed, err := consumer.ConsumePartition(request.Topic, partition, offset)
		if err != nil {
			reader.close()
			return nil, err
		}
		reader.partitions[partition] = consumed
		go func() {
			for message := range consumed.Messages() {
				reader.messages <- message
			}
		}()
		go func() {
			for failed := range consumed.Errors() {
				reader.errors <- failed
			}
		}()
	}
	return reader, nil
}

func (reader *reader) close() {
	stopped := make(chan struct{})
	go func() {
		for {
			select {
			case <-reader.messages:
			case <-stopped:
				return
			}
		}
	}()
	for _, consumed := range reader.partitions {
		consumed.AsyncClose()
	}
	_ = reader.consumer.Close()
	close(stopped)
}

// read hands on messages until it is done, or says that it has taken too long.
func (reader *reader) read(done func() bool, take func(program.Record)) error {
	timeout := time.After(program.ScenarioTimeout)
	for !done() {
		select {
		case message := <-reader.messages:
			take(taken(message))
		case err := <-reader.errors:
			return err
		case <-timeout:
			return fmt.Errorf("no end in %v", program.ScenarioTimeout)
		}
	}
	return nil
}

func everywhere(request program.Request, offset int64) map[int32]int64 {
	offsets := map[int32]int64{}
	for partition := range request.Lasts {
		offsets[partition] = offset
	}
	return offsets
}

func (client client) digest(request program.Request) (any, error) {
	reader, err := client.reader(request, everywhere(request, sarama.OffsetOldest))
	if err != nil {
		return nil, err
	}
	defer reader.close()
	digests := program.NewDigests(request.Partitions())
	take := func(record program.Record) { digests[record.Partition].Add(record) }
	if err := reader.read(func() bool { return digests.Reached(request.Lasts, nil) }, take); err != nil {
		return nil, err
	}
	for over := time.After(program.Linger); ; {
		select {
		case message := <-reader.messages:
			take(taken(message))
		case err := <-reader.errors:
			return nil, err
		case <-over:
			return map[string]any{"partitions": digests}, nil
		}
	}
}

func (client client) timestamps(request program.Request) (any, error) {
	asking, err := sarama.NewClient(client.bootstrap, config(request))
	if err != nil {
		return nil, err
	}
	defer asking.Close()
	var found []any
	for _, timestampMs := range request.TimestampsMs {
		offsets, starts := map[int32]int64{}, map[int32]int64{}
		for _, partition := range request.Partitions() {
			offset, err := asking.GetOffset(request.Topic, partition, timestampMs)
			if err != nil {
				return nil, err
			}
			offsets[partition] = offset
			if offset >= 0 {
				starts[partition] = offset
			}
		}
		digests, err := client.some(request, starts)
		if err != nil {
			return nil, err
		}
		found = append(found, map[string]any{"timestamp_ms": timestampMs, "offsets": offsets, "partitions": digests})
	}
	return map[string]any{"found": found}, nil
}

// some reads the first few records of each partition from an offset on.
func (client client) some(request program.Request, starts map[int32]int64) (program.Digests, error) {
	digests := program.NewDigests(request.Partitions())
	reader, err := client.reader(request, starts)
	if err != nil {
		return nil, err
	}
	defer reader.close()
	done := func() bool {
		for partition, start := range starts {
			if digests[partition].Records < min(request.Records, request.Lasts[partition]-start+1) {
				return false
			}
		}
		return true
	}
	return digests, reader.read(done, func(record program.Record) {
		if digest := digests[record.Partition]; digest.Records < request.Records {
			digest.Add(record)
		}
	})
}

// member is one of a group. sarama calls it on goroutines of its own.
type member struct {
	group   sarama.ConsumerGroup
	stop    context.CancelFunc
	stopped chan struct{}
	take    func(program.Record)
	mutex   sync.Mutex
	has     []int32
}

func (client client) member(
	config *sarama.Config, request program.Request, take func(program.Record),
) (*member, error) {
	group, err := sarama.NewConsumerGroup(client.bootstrap, request.Group, config)
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.Background())
	joined := &member{group: group, stop: stop, stopped: make(chan struct{}), take: take}
	go func() {
		defer close(joined.stopped)
		for running.Err() == nil {
			// Errors too says what goes wrong in a session.
			_ = group.Consume(running, []string{request.Topic}, joined)
		}
	}()
	return joined, nil
}

func (member *member) close() {
	member.stop()
	<-member.stopped
	_ = member.group.Close()
}

func (member *member) partitions() []int32 {
	member.mutex.Lock()
	defer member.mutex.Unlock()
	return slices.Clone(member.has)
}

func (member *member) hold(partitions []int32) {
	sorted := slices.Clone(partitions)
	slices.Sort(sorted)
	member.mutex.Lock()
	defer member.mutex.Unlock()
	member.has = sorted
}

func (member *member) Setup(session sarama.ConsumerGroupSession) error {
	for _, partitions := range session.Claims() {
		member.hold(partitions)
	}
	return nil
}

func (member *member) Cleanup(sarama.ConsumerGroupSession) error {
	member.hold(nil)
	return nil
}

func (member *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, isOpen := <-claim.Messages():
			if !isOpen {
				return nil
			}
			member.take(taken(message))
			session.MarkMessage(message, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

func (client client) group(request program.Request) (any, error) {
	var mutex sync.Mutex
	records, all := program.Collected{}, request.Partitions()
	take := func(record program.Record) {
		mutex.Lock()
		defer mutex.Unlock()
		records.Add(record)
	}
	first, err := client.member(config(request), request, take)
	if err != nil {
		return nil, err
	}
	defer first.close()
	hasAll := func() bool {
		mutex.Lock()
		defer mutex.Unlock()
		return slices.Equal(first.partitions(), all) && len(records) > 0
	}
	if err := wait("one member", hasAll, first); err != nil {
		return nil, err
	}
	second, err := client.member(config(request), request, take)
	if err != nil {
		return nil, err
	}
	err = wait("two members", func() bool {
		one, other := first.partitions(), second.partitions()
		together := slices.Concat(one, other)
		slices.Sort(together)
		return len(one) > 0 && len(other) > 0 && slices.Equal(together, all)
	}, first, second)
	second.close()
	if err != nil {
		return nil, err
	}
	over := func() bool {
		if !hasAll() {
			return false
		}
		mutex.Lock()
		defer mutex.Unlock()
		return records.HasLasts(request.Lasts)
	}
	if err := wait("one member left", over, first); err != nil {
		return nil, err
	}
	mutex.Lock()
	defer mutex.Unlock()
	return map[string]any{"partitions": records.Digests(all)}, nil
}

// wait looks again and again, and fails with what a member says.
func wait(what string, done func() bool, members ...*member) error {
	for deadline := time.Now().Add(program.ScenarioTimeout); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: no end in %v", what, program.ScenarioTimeout)
		}
		for _, member := range members {
			select {
			case err := <-member.group.Errors():
				return fmt.Errorf("%s: %w", what, err)
			default:
			}
		}
	}
	return nil
}

func (client client) pause(request program.Request) (any, error) {
	reader, err := client.reader(request, everywhere(request, sarama.OffsetOldest))
	if err != nil {
		return nil, err
	}
	defer reader.close()
	digests := program.NewDigests(request.Partitions())
	take := func(record program.Record) { digests[record.Partition].Add(record) }
	if err := reader.read(func() bool {
		return !slices.ContainsFunc(request.Paused, func(partition int32) bool { return digests[partition].Records == 0 })
	}, take); err != nil {
		return nil, err
	}
	for _, partition := range request.Paused {
		reader.partitions[partition].Pause()
	}
	if err := reader.read(func() bool { return digests.Reached(request.Lasts, request.Paused) }, take); err != nil {
		return nil, err
	}
	stopped := !slices.ContainsFunc(request.Paused, func(partition int32) bool {
		return digests[partition].Last >= request.Lasts[partition]
	})
	for _, partition := range request.Paused {
		reader.partitions[partition].Resume()
	}
	err = reader.read(func() bool { return digests.Reached(request.Lasts, nil) }, take)
	return map[string]any{"stopped": stopped, "partitions": digests}, err
}

// reset starts a group at a committed offset that is out of range: only groups have a policy.
func (client client) reset(request program.Request) (any, error) {
	config := config(request)
	config.Consumer.Group.ResetInvalidOffsets = request.Policy != "none"
	if request.Policy == "latest" {
		config.Consumer.Offsets.Initial = sarama.OffsetNewest
	}
	config.Producer.Return.Successes = true
	if err := client.commit(config, request); err != nil {
		return nil, err
	}
	first, once := make(chan int64, 1), sync.Once{}
	member, err := client.member(config, request, func(record program.Record) {
		once.Do(func() { first <- record.Offset })
	})
	if err != nil {
		return nil, err
	}
	defer member.close()
	producer, err := sarama.NewSyncProducer(client.bootstrap, config)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	timeout := time.After(program.ScenarioTimeout)
	for {
		select {
		case offset := <-first:
			return request.Reset(offset), nil
		case err := <-member.group.Errors():
			if code := sarama.KError(0); errors.As(err, &code) {
				return map[string]any{"error": code.Error()}, nil
			}
			return map[string]any{"error": err.Error()}, nil
		case <-timeout:
			return nil, fmt.Errorf("no record in %v", program.ScenarioTimeout)
		case <-time.After(program.ProduceEvery):
			message := &sarama.ProducerMessage{Topic: request.Topic, Value: sarama.StringEncoder("something new")}
			if _, _, err := producer.SendMessage(message); err != nil {
				return nil, err
			}
		}
	}
}

func (client client) commit(config *sarama.Config, request program.Request) error {
	committing, err := sarama.NewClient(client.bootstrap, config)
	if err != nil {
		return err
	}
	defer committing.Close()
	offsets, err := sarama.NewOffsetManagerFromClient(request.Group, committing)
	if err != nil {
		return err
	}
	partition, err := offsets.ManagePartition(request.Topic, 0)
	if err != nil {
		return err
	}
	// A fresh group has none: an offset below the first is marked as well as one above the last.
	partition.MarkOffset(request.Offset, "")
	offsets.Commit()
	partition.AsyncClose()
	for failed := range partition.Errors() {
		return failed
	}
	return offsets.Close()
}
