package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// member is one consumer of a group; its session runs until it is closed.
type member struct {
	group  sarama.ConsumerGroup
	cancel context.CancelFunc
	ended  chan struct{}
	lock   sync.Mutex
	held   int
	rows   []*sarama.ConsumerMessage
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.held = 0
	for _, parts := range session.Claims() {
		m.held += len(parts)
	}
	return nil
}

// Cleanup commits what was read. Not after each record: a fetch that waits holds up the commit
// behind it, since this client asks the coordinator on the connection that it fetches on.
func (m *member) Cleanup(session sarama.ConsumerGroupSession) error {
	session.Commit()
	return nil
}

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case row, open := <-claim.Messages():
			if !open {
				return nil
			}
			m.lock.Lock()
			m.rows = append(m.rows, row)
			m.lock.Unlock()
			session.MarkMessage(row, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

func join(name, from string, change func(*sarama.Config)) (*member, error) {
	made := config()
	if change != nil {
		change(made)
	}
	group, err := sarama.NewConsumerGroup([]string{bootstrap}, topic(name), made)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &member{group: group, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(m.ended)
		for ctx.Err() == nil {
			if err := group.Consume(ctx, []string{from}, m); err != nil {
				fmt.Println("consume:", err)
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	return m, nil
}

func (m *member) close() {
	m.cancel()
	<-m.ended
	m.group.Close()
}

func (m *member) count() int {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.held
}

func (m *member) read() int {
	m.lock.Lock()
	defer m.lock.Unlock()
	return len(m.rows)
}

func groupFeatures() {
	check("group", func() error {
		reader, err := join("g", topic("consume"), nil)
		if err != nil {
			return err
		}
		defer reader.close()
		return until(func() (bool, error) {
			return reader.read() == 600, want(reader.read() <= 600, "%d rows", reader.read())
		})
	})
	check("group-commit", func() error {
		name, err := create("commit", 1)
		if err != nil {
			return err
		}
		for _, first := range []int{0, 50} {
			if err := send(config(), numbered(name, first, 50, 1)); err != nil {
				return err
			}
			reader, err := join("gc", name, nil)
			if err != nil {
				return err
			}
			err = until(func() (bool, error) { return reader.read() >= 50, nil })
			reader.close()
			if err != nil {
				return err
			}
			if reader.read() != 50 || string(reader.rows[0].Key) != fmt.Sprint(first) {
				return fmt.Errorf("%d rows from %s", reader.read(), reader.rows[0].Key)
			}
		}
		return nil
	})
	check("group-rebalance", func() error {
		name, err := create("share", 4)
		if err != nil {
			return err
		}
		first, err := join("gr", name, nil)
		if err != nil {
			return err
		}
		defer first.close()
		all := func() (bool, error) { return first.count() == 4, nil }
		if err := until(all); err != nil {
			return err
		}
		second, err := join("gr", name, nil)
		if err != nil {
			return err
		}
		err = until(func() (bool, error) { return first.count() == 2 && second.count() == 2, nil })
		second.close()
		if err != nil {
			return err
		}
		return until(all)
	})
	check("static-member", func() error {
		for range 2 {
			reader, err := join("gs", topic("share"), func(made *sarama.Config) { made.Consumer.Group.InstanceId = "one" })
			if err != nil {
				return err
			}
			err = until(func() (bool, error) { return reader.count() == 4, nil })
			reader.close()
			if err != nil {
				return err
			}
		}
		found, err := admin.DescribeConsumerGroups([]string{topic("gs")})
		if err != nil {
			return err
		}
		return want(len(found[0].Members) == 1, "%d members", len(found[0].Members))
	})
}

func transactional(id string) (sarama.SyncProducer, error) {
	made := idempotent()
	made.Producer.Transaction.ID = topic(id)
	return sarama.NewSyncProducer([]string{bootstrap}, made)
}

func write(producer sarama.SyncProducer, text string, end func() error) error {
	if err := producer.BeginTxn(); err != nil {
		return err
	}
	if _, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic("txn"), Value: sarama.StringEncoder(text)}); err != nil {
		return err
	}
	return end()
}

func transactionFeatures() {
	committed := config()
	committed.Consumer.IsolationLevel = sarama.ReadCommitted
	check("txn-commit", func() error {
		if _, err := create("txn", 1); err != nil {
			return err
		}
		producer, err := transactional("t")
		if err != nil {
			return err
		}
		defer producer.Close()
		if err := write(producer, "kept-1", producer.CommitTxn); err != nil {
			return err
		}
		rows, err := read(committed, topic("txn"), 0, 1)
		if err != nil {
			return err
		}
		return want(string(rows[0].Value) == "kept-1", "%s", rows[0].Value)
	})
	check("txn-abort", func() error {
		producer, err := transactional("t")
		if err != nil {
			return err
		}
		defer producer.Close()
		if err := write(producer, "dropped", producer.AbortTxn); err != nil {
			return err
		}
		if err := write(producer, "kept-2", producer.CommitTxn); err != nil {
			return err
		}
		rows, err := read(committed, topic("txn"), 0, 2)
		if err != nil {
			return err
		}
		if string(rows[1].Value) != "kept-2" {
			return fmt.Errorf("read_committed shows %s", rows[1].Value)
		}
		rows, err = read(config(), topic("txn"), 0, 3)
		if err != nil {
			return err
		}
		return want(string(rows[1].Value) == "dropped", "%s", rows[1].Value)
	})
	check("txn-offsets", func() error {
		producer, err := transactional("to")
		if err != nil {
			return err
		}
		defer producer.Close()
		offsets := map[string][]*sarama.PartitionOffsetMetadata{topic("consume"): {{Partition: 0, Offset: 33}}}
		err = write(producer, "kept-3", func() error {
			if err := producer.AddOffsetsToTxn(offsets, topic("gt")); err != nil {
				return err
			}
			return producer.CommitTxn()
		})
		if err != nil {
			return err
		}
		return until(func() (bool, error) {
			found, err := admin.ListConsumerGroupOffsets(topic("gt"), map[string][]int32{topic("consume"): {0}})
			if err != nil {
				return false, err
			}
			return found.GetBlock(topic("consume"), 0).Offset == 33, nil
		})
	})
	check("txn-fencing", func() error {
		older, err := transactional("f")
		if err != nil {
			return err
		}
		defer older.Close()
		newer, err := transactional("f")
		if err != nil {
			return err
		}
		defer newer.Close()
		err = write(older, "late", older.CommitTxn)
		return want(err != nil && !errors.Is(err, sarama.ErrOutOfBrokers), "the older producer was not fenced: %v", err)
	})
}
