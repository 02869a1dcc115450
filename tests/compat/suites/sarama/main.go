// sarama against one broker: a line for each feature, see ../README.md.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

const deadline = 40 * time.Second

var (
	bootstrap = os.Getenv("COMPAT_BOOTSTRAP")
	prefix    = os.Getenv("COMPAT_PREFIX")
	admin     sarama.ClusterAdmin
)

func check(name string, feature func() error) {
	done := make(chan error, 1)
	go func() { done <- feature() }()
	var err error
	select {
	case err = <-done:
	case <-time.After(deadline):
		err = errors.New("not done in time")
	}
	if err != nil {
		fmt.Printf("fail %s: %s\n", name, strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	fmt.Printf("ok %s\n", name)
}

func topic(name string) string { return prefix + "-" + name }

func config() *sarama.Config {
	made := sarama.NewConfig()
	made.Version = sarama.MaxVersion
	made.Producer.Return.Successes = true
	made.Producer.Partitioner = sarama.NewManualPartitioner
	made.Consumer.Offsets.Initial = sarama.OffsetOldest
	made.Consumer.Offsets.AutoCommit.Enable = false
	made.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	return made
}

func create(name string, partitions int32) (string, error) {
	return topic(name), admin.CreateTopic(topic(name), &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false)
}

func send(made *sarama.Config, messages []*sarama.ProducerMessage) error {
	producer, err := sarama.NewSyncProducer([]string{bootstrap}, made)
	if err != nil {
		return err
	}
	defer producer.Close()
	return producer.SendMessages(messages)
}

func read(made *sarama.Config, name string, partition int32, count int) ([]*sarama.ConsumerMessage, error) {
	consumer, err := sarama.NewConsumer([]string{bootstrap}, made)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	source, err := consumer.ConsumePartition(name, partition, sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	defer source.Close()
	var rows []*sarama.ConsumerMessage
	limit := time.After(deadline / 2)
	for len(rows) < count {
		select {
		case row := <-source.Messages():
			rows = append(rows, row)
		case <-limit:
			return rows, fmt.Errorf("%d rows instead of %d", len(rows), count)
		}
	}
	return rows, nil
}

func numbered(name string, first, count, partitions int) []*sarama.ProducerMessage {
	var messages []*sarama.ProducerMessage
	for n := first; n < first+count; n++ {
		messages = append(messages, &sarama.ProducerMessage{
			Topic: name, Partition: int32(n % partitions), Key: sarama.StringEncoder(fmt.Sprint(n)),
			Value: sarama.StringEncoder(strings.Repeat(fmt.Sprintf("value-%d", n), 10)),
		})
	}
	return messages
}

func roundTrip(name string, made *sarama.Config) error {
	to, err := create(name, 1)
	if err != nil {
		return err
	}
	if err := send(made, numbered(to, 0, 300, 1)); err != nil {
		return err
	}
	rows, err := read(config(), to, 0, 300)
	if err != nil {
		return err
	}
	for n, row := range rows {
		if row.Offset != int64(n) || string(row.Key) != fmt.Sprint(n) || string(row.Value) != strings.Repeat(fmt.Sprintf("value-%d", n), 10) {
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

func until(condition func() (bool, error)) error {
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		good, err := condition()
		if err != nil || good {
			return err
		}
	}
	return errors.New("did not come about in time")
}

func main() {
	check("connect", func() (err error) {
		admin, err = sarama.NewClusterAdmin([]string{bootstrap}, config())
		return err
	})
	if admin == nil {
		return
	}
	defer admin.Close()
	produceFeatures()
	consumeFeatures()
	groupFeatures()
	transactionFeatures()
	adminFeatures()
}

func produceFeatures() {
	check("create-topic", func() error { _, err := create("created", 3); return err })
	check("list-topics", func() error {
		found, err := admin.ListTopics()
		if err != nil {
			return err
		}
		return want(found[topic("created")].NumPartitions == 3, "%v", found)
	})
	check("auto-create", func() error {
		return send(config(), []*sarama.ProducerMessage{{Topic: topic("auto"), Value: sarama.StringEncoder("v")}})
	})
	for name, acks := range map[string]sarama.RequiredAcks{"0": sarama.NoResponse, "1": sarama.WaitForLocal, "all": sarama.WaitForAll} {
		check("acks-"+name, func() error {
			made := config()
			made.Producer.RequiredAcks = acks
			return roundTrip("acks"+name, made)
		})
	}
	codecs := map[string]sarama.CompressionCodec{
		"gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}
	for name, codec := range codecs {
		check("codec-"+name, func() error {
			made := config()
			made.Producer.Compression = codec
			return roundTrip(name, made)
		})
	}
	check("idempotent", func() error { return roundTrip("idempotent", idempotent()) })
	check("headers", func() error {
		name, err := create("headers", 1)
		if err != nil {
			return err
		}
		headers := []sarama.RecordHeader{{Key: []byte("n"), Value: []byte("1")}, {Key: []byte("n"), Value: []byte("2")}, {Key: []byte("none")}, {Key: []byte("grün"), Value: []byte{0, 255}}}
		if err := send(config(), []*sarama.ProducerMessage{{Topic: name, Value: sarama.StringEncoder("v"), Headers: headers}}); err != nil {
			return err
		}
		rows, err := read(config(), name, 0, 1)
		if err != nil {
			return err
		}
		if len(rows[0].Headers) != len(headers) {
			return fmt.Errorf("%v", rows[0].Headers)
		}
		for n, header := range rows[0].Headers {
			if !bytes.Equal(header.Key, headers[n].Key) || !bytes.Equal(header.Value, headers[n].Value) {
				return fmt.Errorf("%v", header)
			}
		}
		return nil
	})
	check("null-values", func() error {
		name, err := create("null", 1)
		if err != nil {
			return err
		}
		messages := []*sarama.ProducerMessage{{Topic: name, Value: sarama.StringEncoder("v")}, {Topic: name, Key: sarama.StringEncoder("k")}}
		if err := send(config(), messages); err != nil {
			return err
		}
		rows, err := read(config(), name, 0, 2)
		if err != nil {
			return err
		}
		return want(rows[0].Key == nil && rows[1].Value == nil, "%v", rows)
	})
	check("large-record", func() error {
		name, err := create("large", 1)
		if err != nil {
			return err
		}
		value := bytes.Repeat([]byte("0123456789abcdef"), 48<<10)
		if err := send(config(), []*sarama.ProducerMessage{{Topic: name, Value: sarama.ByteEncoder(value)}}); err != nil {
			return err
		}
		rows, err := read(config(), name, 0, 1)
		if err != nil {
			return err
		}
		return want(bytes.Equal(rows[0].Value, value), "another value")
	})
}

func idempotent() *sarama.Config {
	made := config()
	made.Producer.Idempotent = true
	made.Producer.RequiredAcks = sarama.WaitForAll
	made.Net.MaxOpenRequests = 1
	return made
}

func consumeFeatures() {
	check("consume", func() error {
		name, err := create("consume", 3)
		if err != nil {
			return err
		}
		if err := send(config(), numbered(name, 0, 600, 3)); err != nil {
			return err
		}
		for partition := int32(0); partition < 3; partition++ {
			rows, err := read(config(), name, partition, 200)
			if err != nil {
				return err
			}
			for n, row := range rows {
				if row.Offset != int64(n) || string(row.Key) != fmt.Sprint(n*3+int(partition)) {
					return fmt.Errorf("row %d is %s", n, row.Key)
				}
			}
		}
		return nil
	})
	offset := func(name string, partition int32, moment int64) (int64, error) {
		client, err := sarama.NewClient([]string{bootstrap}, config())
		if err != nil {
			return 0, err
		}
		defer client.Close()
		return client.GetOffset(name, partition, moment)
	}
	check("list-offsets", func() error {
		first, err := offset(topic("consume"), 1, sarama.OffsetOldest)
		if err != nil {
			return err
		}
		last, err := offset(topic("consume"), 1, sarama.OffsetNewest)
		if err != nil {
			return err
		}
		return want(first == 0 && last == 200, "%d to %d", first, last)
	})
	check("seek-by-time", func() error {
		name, err := create("time", 1)
		if err != nil {
			return err
		}
		var messages []*sarama.ProducerMessage
		for n := 0; n < 10; n++ {
			messages = append(messages, &sarama.ProducerMessage{
				Topic: name, Value: sarama.StringEncoder("v"), Timestamp: time.UnixMilli(1_700_000_000_000 + int64(n)*1000),
			})
		}
		if err := send(config(), messages); err != nil {
			return err
		}
		found, err := offset(name, 0, 1_700_000_004_500)
		if err != nil {
			return err
		}
		return want(found == 5, "%d", found)
	})
}
