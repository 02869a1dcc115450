// franz-go against one broker: a line for each feature, see ../README.md.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const deadline = 40 * time.Second

var (
	bootstrap = os.Getenv("COMPAT_BOOTSTRAP")
	prefix    = os.Getenv("COMPAT_PREFIX")
	admin     *kadm.Client
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

func client(options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(bootstrap)}, options...)...)
	if err != nil {
		panic(err)
	}
	return made
}

func topic(name string) string { return prefix + "-" + name }

func create(ctx context.Context, name string, partitions int32) (string, error) {
	_, err := admin.CreateTopic(ctx, partitions, 1, nil, topic(name))
	return topic(name), err
}

func send(ctx context.Context, records []*kgo.Record, options ...kgo.Opt) error {
	options = append([]kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner())}, options...)
	producer := client(options...)
	defer producer.Close()
	return producer.ProduceSync(ctx, records...).FirstErr()
}

func poll(ctx context.Context, from *kgo.Client, count int) ([]*kgo.Record, error) {
	var rows []*kgo.Record
	for len(rows) < count {
		fetches := from.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return rows, fmt.Errorf("%d of %d rows: %w", len(rows), count, err)
		}
		rows = append(rows, fetches.Records()...)
	}
	return rows, nil
}

func read(ctx context.Context, name string, partitions int32, count int, options ...kgo.Opt) ([]*kgo.Record, error) {
	places := map[int32]kgo.Offset{}
	for number := int32(0); number < partitions; number++ {
		places[number] = kgo.NewOffset().AtStart()
	}
	options = append(options, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{name: places}))
	consumer := client(options...)
	defer consumer.Close()
	return poll(ctx, consumer, count)
}

func numbered(name string, first, count, partitions int) []*kgo.Record {
	var records []*kgo.Record
	for n := first; n < first+count; n++ {
		records = append(records, &kgo.Record{
			Topic: name, Partition: int32(n % partitions),
			Key: []byte(fmt.Sprint(n)), Value: bytes.Repeat([]byte(fmt.Sprintf("value-%d", n)), 10),
		})
	}
	return records
}

func roundTrip(ctx context.Context, name string, options ...kgo.Opt) error {
	made, err := create(ctx, name, 1)
	if err != nil {
		return err
	}
	sent := numbered(made, 0, 300, 1)
	if err := send(ctx, sent, options...); err != nil {
		return err
	}
	rows, err := read(ctx, made, 1, 300)
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

func main() {
	admin = kadm.NewClient(client())
	defer admin.Close()
	check("connect", func(ctx context.Context) error {
		found, err := admin.BrokerMetadata(ctx)
		if err != nil {
			return err
		}
		return want(len(found.Brokers) == 1 && found.Cluster != "", "%v", found)
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
		found, err := admin.ListTopics(ctx)
		if err != nil {
			return err
		}
		return want(len(found[topic("created")].Partitions) == 3, "%v", found)
	})
	check("auto-create", func(ctx context.Context) error {
		return send(ctx, []*kgo.Record{{Topic: topic("auto"), Value: []byte("v")}}, kgo.AllowAutoTopicCreation())
	})
	for name, acks := range map[string]kgo.Acks{"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks()} {
		check("acks-"+name, func(ctx context.Context) error {
			return roundTrip(ctx, "acks"+name, kgo.RequiredAcks(acks), kgo.DisableIdempotentWrite())
		})
	}
	codecs := map[string]kgo.CompressionCodec{
		"gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	for name, codec := range codecs {
		check("codec-"+name, func(ctx context.Context) error {
			return roundTrip(ctx, name, kgo.ProducerBatchCompression(codec))
		})
	}
	check("idempotent", func(ctx context.Context) error { return roundTrip(ctx, "idempotent") })
	check("headers", func(ctx context.Context) error {
		name, err := create(ctx, "headers", 1)
		if err != nil {
			return err
		}
		headers := []kgo.RecordHeader{{Key: "n", Value: []byte("1")}, {Key: "n", Value: []byte("2")}, {Key: "none"}, {Key: "grün", Value: []byte{0, 255}}}
		if err := send(ctx, []*kgo.Record{{Topic: name, Value: []byte("v"), Headers: headers}}); err != nil {
			return err
		}
		rows, err := read(ctx, name, 1, 1)
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
		if err := send(ctx, []*kgo.Record{{Topic: name, Value: []byte("v")}, {Topic: name, Key: []byte("k")}}); err != nil {
			return err
		}
		rows, err := read(ctx, name, 1, 2)
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
		if err := send(ctx, []*kgo.Record{{Topic: name, Value: value}}, kgo.ProducerBatchCompression(kgo.NoCompression())); err != nil {
			return err
		}
		rows, err := read(ctx, name, 1, 1)
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
		rows, err := read(ctx, name, 3, 600)
		if err != nil {
			return err
		}
		next := map[int32]int64{}
		for _, row := range rows {
			if row.Offset != next[row.Partition] {
				return fmt.Errorf("offset %d instead of %d", row.Offset, next[row.Partition])
			}
			next[row.Partition]++
		}
		return want(next[0] == 200 && next[1] == 200 && next[2] == 200, "%v", next)
	})
	check("list-offsets", func(ctx context.Context) error {
		ends, err := admin.ListEndOffsets(ctx, topic("consume"))
		if err != nil {
			return err
		}
		found, _ := ends.Lookup(topic("consume"), 1)
		return want(found.Err == nil && found.Offset == 200, "%v", found)
	})
	check("seek-by-time", func(ctx context.Context) error {
		name, err := create(ctx, "time", 1)
		if err != nil {
			return err
		}
		start := time.UnixMilli(1_700_000_000_000)
		var records []*kgo.Record
		for n := 0; n < 10; n++ {
			records = append(records, &kgo.Record{Topic: name, Value: []byte("v"), Timestamp: start.Add(time.Duration(n) * time.Second)})
		}
		if err := send(ctx, records); err != nil {
			return err
		}
		listed, err := admin.ListOffsetsAfterMilli(ctx, 1_700_000_004_500, name)
		if err != nil {
			return err
		}
		found, _ := listed.Lookup(name, 0)
		return want(found.Offset == 5, "%v", found)
	})
}
