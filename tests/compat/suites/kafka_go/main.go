// kafka-go (segmentio) against one broker: a line for each feature, see ../README.md.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

const deadline = 40 * time.Second

var (
	bootstrap = os.Getenv("COMPAT_BOOTSTRAP")
	prefix    = os.Getenv("COMPAT_PREFIX")
	admin     = &kafka.Client{Addr: kafka.TCP(bootstrap), Timeout: deadline}
)

func check(name string, feature func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if err := feature(ctx); err != nil {
		fmt.Printf("fail %s: %s\n", name, strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	fmt.Printf("ok %s\n", name)
}

func topic(name string) string { return prefix + "-" + name }

func create(ctx context.Context, name string, partitions int) (string, error) {
	made, err := admin.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{
		{Topic: topic(name), NumPartitions: partitions, ReplicationFactor: 1},
	}})
	if err != nil {
		return "", err
	}
	return topic(name), made.Errors[topic(name)]
}

// place sends a message to the partition that its number names.
func place(message kafka.Message, partitions ...int) int { return partitions[message.Partition] }

func writer() *kafka.Writer {
	return &kafka.Writer{
		Addr: kafka.TCP(bootstrap), Balancer: kafka.BalancerFunc(place), RequiredAcks: kafka.RequireAll,
		BatchTimeout: 5 * time.Millisecond, BatchSize: 300, BatchBytes: 4 << 20,
	}
}

func send(ctx context.Context, messages []kafka.Message, settings ...func(*kafka.Writer)) error {
	made := writer()
	for _, set := range settings {
		set(made)
	}
	defer made.Close()
	return made.WriteMessages(ctx, messages...)
}

func read(ctx context.Context, name string, partition, count int, settings ...func(*kafka.ReaderConfig)) ([]kafka.Message, error) {
	config := kafka.ReaderConfig{
		Brokers: []string{bootstrap}, Topic: name, Partition: partition, MinBytes: 1, MaxBytes: 4 << 20,
		MaxWait: 300 * time.Millisecond,
	}
	for _, set := range settings {
		set(&config)
	}
	reader := kafka.NewReader(config)
	defer reader.Close()
	var rows []kafka.Message
	for len(rows) < count {
		row, err := reader.ReadMessage(ctx)
		if err != nil {
			return rows, fmt.Errorf("%d of %d rows: %w", len(rows), count, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func numbered(name string, first, count, partitions int) []kafka.Message {
	var messages []kafka.Message
	for n := first; n < first+count; n++ {
		messages = append(messages, kafka.Message{
			Topic: name, Partition: n % partitions,
			Key: []byte(fmt.Sprint(n)), Value: bytes.Repeat([]byte(fmt.Sprintf("value-%d", n)), 10),
		})
	}
	return messages
}

func roundTrip(ctx context.Context, name string, settings ...func(*kafka.Writer)) error {
	made, err := create(ctx, name, 1)
	if err != nil {
		return err
	}
	sent := numbered(made, 0, 300, 1)
	if err := send(ctx, sent, settings...); err != nil {
		return err
	}
	rows, err := read(ctx, made, 0, 300)
	if err != nil {
		return err
	}
	for n, row := range rows {
		if row.Offset != int64(n) || !bytes.Equal(row.Value, sent[n].Value) || !bytes.Equal(row.Key, sent[n].Key) {
			return fmt.Errorf("row %d is %v", n, row)
		}
	}
	return nil
}

func want(good bool, format string, arguments ...any) error {
	if good {
		return nil
	}
	return fmt.Errorf(format, arguments...)
}

func until(ctx context.Context, condition func() (bool, error)) error {
	for {
		good, err := condition()
		if err != nil || good {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.New("did not come about in time")
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func metadata(ctx context.Context, topics ...string) (*kafka.MetadataResponse, error) {
	return admin.Metadata(ctx, &kafka.MetadataRequest{Topics: topics})
}

func main() {
	check("connect", func(ctx context.Context) error {
		found, err := metadata(ctx)
		if err != nil {
			return err
		}
		return want(len(found.Brokers) == 1 && found.ClusterID != "", "%v", found)
	})
	produceFeatures()
	consumeFeatures()
	groupFeatures()
	transactionFeatures()
	adminFeatures()
}

func produceFeatures() {
	check("create-topic", func(ctx context.Context) error {
		_, err := create(ctx, "created", 3)
		return err
	})
	check("list-topics", func(ctx context.Context) error {
		found, err := metadata(ctx, topic("created"))
		if err != nil {
			return err
		}
		return want(len(found.Topics) == 1 && len(found.Topics[0].Partitions) == 3, "%v", found)
	})
	check("auto-create", func(ctx context.Context) error {
		message := kafka.Message{Topic: topic("auto"), Value: []byte("v")}
		return until(ctx, func() (bool, error) {
			err := send(ctx, []kafka.Message{message}, func(w *kafka.Writer) { w.AllowAutoTopicCreation = true })
			return err == nil, nil // the first one finds no leader yet
		})
	})
	for name, acks := range map[string]kafka.RequiredAcks{"0": kafka.RequireNone, "1": kafka.RequireOne, "all": kafka.RequireAll} {
		check("acks-"+name, func(ctx context.Context) error {
			return roundTrip(ctx, "acks"+name, func(w *kafka.Writer) { w.RequiredAcks = acks })
		})
	}
	codecs := map[string]kafka.Compression{"gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd}
	for name, codec := range codecs {
		check("codec-"+name, func(ctx context.Context) error {
			return roundTrip(ctx, name, func(w *kafka.Writer) { w.Compression = codec })
		})
	}
	fmt.Println("lacks idempotent")
	check("headers", func(ctx context.Context) error {
		name, err := create(ctx, "headers", 1)
		if err != nil {
			return err
		}
		headers := []kafka.Header{{Key: "n", Value: []byte("1")}, {Key: "n", Value: []byte("2")}, {Key: "none"}, {Key: "grün", Value: []byte{0, 255}}}
		if err := send(ctx, []kafka.Message{{Topic: name, Value: []byte("v"), Headers: headers}}); err != nil {
			return err
		}
		rows, err := read(ctx, name, 0, 1)
		if err != nil {
			return err
		}
		return want(fmt.Sprint(rows[0].Headers) == fmt.Sprint(headers), "%v", rows[0].Headers)
	})
	check("null-values", func(ctx context.Context) error {
		name, err := create(ctx, "null", 1)
		if err != nil {
			return err
		}
		if err := send(ctx, []kafka.Message{{Topic: name, Value: []byte("v")}, {Topic: name, Key: []byte("k")}}); err != nil {
			return err
		}
		rows, err := read(ctx, name, 0, 2)
		if err != nil {
			return err
		}
		return want(rows[0].Key == nil && rows[1].Value == nil, "%v", rows)
	})
	check("large-record", func(ctx context.Context) error {
		name, err := create(ctx, "large", 1)
		if err != nil {
			return err
		}
		value := bytes.Repeat([]byte("0123456789abcdef"), 48<<10)
		if err := send(ctx, []kafka.Message{{Topic: name, Value: value}}); err != nil {
			return err
		}
		rows, err := read(ctx, name, 0, 1)
		if err != nil {
			return err
		}
		return want(bytes.Equal(rows[0].Value, value), "another value")
	})
}

func consumeFeatures() {
	check("consume", func(ctx context.Context) error {
		name, err := create(ctx, "consume", 3)
		if err != nil {
			return err
		}
		if err := send(ctx, numbered(name, 0, 600, 3)); err != nil {
			return err
		}
		for partition := range 3 {
			rows, err := read(ctx, name, partition, 200)
			if err != nil {
				return err
			}
			for n, row := range rows {
				if row.Offset != int64(n) || string(row.Key) != fmt.Sprint(3*n+partition) {
					return fmt.Errorf("row %d is %v", n, row)
				}
			}
		}
		return nil
	})
	offset := func(ctx context.Context, name string, request kafka.OffsetRequest) (kafka.PartitionOffsets, error) {
		found, err := admin.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{name: {request}}})
		if err != nil {
			return kafka.PartitionOffsets{}, err
		}
		return found.Topics[name][0], found.Topics[name][0].Error
	}
	check("list-offsets", func(ctx context.Context) error {
		first, err := offset(ctx, topic("consume"), kafka.FirstOffsetOf(1))
		if err != nil {
			return err
		}
		last, err := offset(ctx, topic("consume"), kafka.LastOffsetOf(1))
		if err != nil {
			return err
		}
		return want(first.FirstOffset == 0 && last.LastOffset == 200, "%v %v", first, last)
	})
	check("seek-by-time", func(ctx context.Context) error {
		name, err := create(ctx, "time", 1)
		if err != nil {
			return err
		}
		start := time.UnixMilli(1_700_000_000_000)
		var messages []kafka.Message
		for n := range 10 {
			messages = append(messages, kafka.Message{Topic: name, Value: []byte("v"), Time: start.Add(time.Duration(n) * time.Second)})
		}
		if err := send(ctx, messages); err != nil {
			return err
		}
		found, err := offset(ctx, name, kafka.TimeOffsetOf(0, time.UnixMilli(1_700_000_004_500)))
		if err != nil {
			return err
		}
		_, there := found.Offsets[5]
		return want(there, "%v", found)
	})
}
