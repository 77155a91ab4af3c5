// Package program is what the Go clients of tests/support/client_programs.py have in common: a line of JSON on stdin
// asks for a scenario, a line of JSON on stdout answers it, until stdin ends. The bootstrap servers are the only
// argument.
package program

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"os"
	"slices"
	"strings"
	"time"
)

// ScenarioTimeout is how long one scenario may last; the tests wait a little longer.
const ScenarioTimeout = 30 * time.Second

// Linger is how long a read goes on behind the last record: none may come.
const Linger = 200 * time.Millisecond

// FetchMaxWait is what every consumer here asks of the broker.
const FetchMaxWait = 100 * time.Millisecond

// PartitionBytesMax is a consumer's limit for a partition in one Fetch: a topic needs many of them.
const PartitionBytesMax = 16 * 1024

// ProduceEvery is how often a reset policy is given a new record to find.
const ProduceEvery = 300 * time.Millisecond

// Request is one line of stdin. Which members a scenario has is said in client_programs.py.
type Request struct {
	Scenario     string          `json:"scenario"`
	Topic        string          `json:"topic"`
	Group        string          `json:"group"`
	Isolation    string          `json:"isolation"`
	Lasts        map[int32]int64 `json:"lasts"`
	TimestampsMs []int64         `json:"timestamps_ms"`
	Records      int64           `json:"records"`
	Paused       []int32         `json:"paused"`
	Policy       string          `json:"policy"`
	Offset       int64           `json:"offset"`
	Start        int64           `json:"start"`
	End          int64           `json:"end"`
	Sasl         *Sasl           `json:"sasl"`
}

// Sasl is how to sign in; Handshake is the version of SaslHandshake, for clients that have a choice.
type Sasl struct {
	Mechanism string `json:"mechanism"`
	Username  string `json:"username"`
	Password  string `json:"password"`
	Handshake int16  `json:"handshake"`
}

// Partitions are those of Lasts, in order.
func (request Request) Partitions() []int32 {
	var partitions []int32
	for partition := range request.Lasts {
		partitions = append(partitions, partition)
	}
	slices.Sort(partitions)
	return partitions
}

// Reset tells which end of the log a first record is at; others produce meanwhile.
func (request Request) Reset(offset int64) map[string]any {
	switch {
	case offset == request.Start:
		return map[string]any{"first": "start"}
	case offset >= request.End:
		return map[string]any{"first": "end"}
	}
	return map[string]any{"first": offset}
}

// Serve answers until stdin ends.
func Serve(scenarios func(bootstrap []string) map[string]func(Request) (any, error)) {
	known := scenarios(strings.Split(os.Args[1], ","))
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var request Request
		answer, err := any(nil), json.Unmarshal(lines.Bytes(), &request)
		if err == nil {
			if scenario, found := known[request.Scenario]; found {
				answer, err = scenario(request)
			} else {
				err = fmt.Errorf("no scenario %q", request.Scenario)
			}
		}
		said := map[string]any{"answer": answer}
		if err != nil {
			said = map[string]any{"failure": err.Error()}
		}
		text, err := json.Marshal(said)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(text))
	}
}

// Header is one of a record's; a nil Value is null.
type Header struct {
	Name  string
	Value []byte
}

// Record is what a digest takes of one.
type Record struct {
	Partition   int32
	Offset      int64
	TimestampMs int64
	Key, Value  []byte
	Headers     []Header
}

// Digest is one partition's records, counted and hashed as by TopicDigest of tests/support/digests.py.
type Digest struct {
	Records int64  `json:"records"`
	First   int64  `json:"first"`
	Last    int64  `json:"last"`
	SHA256  string `json:"sha256"`
	hash    hash.Hash
}

// NewDigest is one of no records.
func NewDigest() *Digest {
	empty := &Digest{First: -1, Last: -1, hash: sha256.New()}
	empty.SHA256 = hex.EncodeToString(empty.hash.Sum(nil))
	return empty
}

// Add takes the next record.
func (digest *Digest) Add(record Record) {
	fields := [][]byte{record.Key, record.Value}
	for _, header := range record.Headers {
		fields = append(fields, append([]byte{}, header.Name...), header.Value)
	}
	head := binary.BigEndian.AppendUint64(nil, uint64(record.Offset))
	head = binary.BigEndian.AppendUint64(head, uint64(record.TimestampMs))
	head = binary.BigEndian.AppendUint32(head, uint32(len(fields)))
	for _, field := range fields {
		length := int32(len(field))
		if field == nil {
			length = -1
		}
		head = binary.BigEndian.AppendUint32(head, uint32(length))
	}
	digest.hash.Write(head)
	for _, field := range fields {
		digest.hash.Write(field)
	}
	if digest.Records == 0 {
		digest.First = record.Offset
	}
	digest.Records++
	digest.Last = record.Offset
	digest.SHA256 = hex.EncodeToString(digest.hash.Sum(nil))
}

// Digests are those of a read in order, one a partition.
type Digests map[int32]*Digest

// NewDigests is one digest of nothing a partition.
func NewDigests(partitions []int32) Digests {
	digests := Digests{}
	for _, partition := range partitions {
		digests[partition] = NewDigest()
	}
	return digests
}

// Reached tells whether each partition but the `left` out has given its last record.
func (digests Digests) Reached(lasts map[int32]int64, left []int32) bool {
	for partition, digest := range digests {
		if !slices.Contains(left, partition) && digest.Last < lasts[partition] {
			return false
		}
	}
	return true
}

// Collected are records by partition and offset, for readers that may get one twice.
type Collected map[int32]map[int64]Record

// Add takes a record, again or for the first time.
func (collected Collected) Add(record Record) {
	if collected[record.Partition] == nil {
		collected[record.Partition] = map[int64]Record{}
	}
	collected[record.Partition][record.Offset] = record
}

// Has tells whether one record came.
func (collected Collected) Has(partition int32, last int64) bool {
	_, found := collected[partition][last]
	return found
}

// HasLasts tells whether the last record of each partition came.
func (collected Collected) HasLasts(lasts map[int32]int64) bool {
	for partition, last := range lasts {
		if !collected.Has(partition, last) {
			return false
		}
	}
	return true
}

// Digests are one a partition, in offset order.
func (collected Collected) Digests(partitions []int32) Digests {
	digests := NewDigests(partitions)
	for _, partition := range partitions {
		var offsets []int64
		for offset := range collected[partition] {
			offsets = append(offsets, offset)
		}
		slices.Sort(offsets)
		for _, offset := range offsets {
			digests[partition].Add(collected[partition][offset])
		}
	}
	return digests
}
