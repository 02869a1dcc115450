package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

func member(group, name string) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{bootstrap}, GroupID: topic(group), Topic: name, MinBytes: 1, MaxBytes: 4 << 20,
		MaxWait: 300 * time.Millisecond, HeartbeatInterval: 500 * time.Millisecond, StartOffset: kafka.FirstOffset,
		SessionTimeout: 10 * time.Second, RebalanceTimeout: 15 * time.Second,
	})
}

func take(ctx context.Context, reader *kafka.Reader, count int) ([]kafka.Message, error) {
	var rows []kafka.Message
	for len(rows) < count {
		row, err := reader.FetchMessage(ctx)
		if err != nil {
			return rows, fmt.Errorf("%d of %d rows: %w", len(rows), count, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// holder joins through the lower interface, which tells what a member is assigned.
type holder struct {
	group *kafka.ConsumerGroup
	lock  sync.Mutex
	held  int
}

func hold(group, name string) (*holder, error) {
	made, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: topic(group), Brokers: []string{bootstrap}, Topics: []string{name},
		HeartbeatInterval: 500 * time.Millisecond, SessionTimeout: 10 * time.Second, RebalanceTimeout: 15 * time.Second,
	})
	if err != nil {
		return nil, err
	}
	one := &holder{group: made}
	go func() {
		for {
			generation, err := made.Next(context.Background())
			if errors.Is(err, kafka.ErrGroupClosed) {
				return
			}
			if err != nil {
				continue
			}
			one.set(len(generation.Assignments[name]))
			generation.Start(func(ctx context.Context) { <-ctx.Done(); one.set(0) })
		}
	}()
	return one, nil
}

func (one *holder) set(count int) {
	one.lock.Lock()
	defer one.lock.Unlock()
	one.held = count
}

func (one *holder) count() int {
	one.lock.Lock()
	defer one.lock.Unlock()
	return one.held
}

func groupFeatures() {
	check("group", func(ctx context.Context) error {
		reader := member("g", topic("consume"))
		defer reader.Close()
		rows, err := take(ctx, reader, 600)
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		for _, row := range rows {
			seen[string(row.Key)] = true
		}
		if len(seen) != 600 || len(rows) != 600 {
			return fmt.Errorf("%d rows, %d keys", len(rows), len(seen))
		}
		return reader.CommitMessages(ctx, rows...)
	})
	check("group-commit", func(ctx context.Context) error {
		name, err := create(ctx, "commit", 1)
		if err != nil {
			return err
		}
		for _, first := range []int{0, 50} {
			if err := send(ctx, numbered(name, first, 50, 1)); err != nil {
				return err
			}
			reader := member("gc", name)
			rows, err := take(ctx, reader, 50)
			if err == nil {
				err = reader.CommitMessages(ctx, rows...)
			}
			reader.Close()
			if err != nil {
				return err
			}
			if string(rows[0].Key) != fmt.Sprint(first) || len(rows) != 50 {
				return fmt.Errorf("%d rows from %s", len(rows), rows[0].Key)
			}
		}
		return nil
	})
	check("group-rebalance", func(ctx context.Context) error {
		name, err := create(ctx, "share", 4)
		if err != nil {
			return err
		}
		first, err := hold("gr", name)
		if err != nil {
			return err
		}
		defer first.group.Close()
		all := func() (bool, error) { return first.count() == 4, nil }
		if err := until(ctx, all); err != nil {
			return err
		}
		second, err := hold("gr", name)
		if err != nil {
			return err
		}
		err = until(ctx, func() (bool, error) { return first.count() == 2 && second.count() == 2, nil })
		second.group.Close()
		if err != nil {
			return err
		}
		return until(ctx, all)
	})
	fmt.Println("lacks group-cooperative")
	fmt.Println("lacks static-member")
	fmt.Println("lacks group-consumer-protocol")
}

// transaction is what the client has of transactions: its requests, one by one.
type transaction struct {
	id      string
	session *kafka.ProducerSession
}

func begin(ctx context.Context, id string) (*transaction, error) {
	var found *kafka.InitProducerIDResponse
	err := until(ctx, func() (bool, error) { // the coordinator may still be loading
		made, err := admin.InitProducerID(ctx, &kafka.InitProducerIDRequest{
			TransactionalID: topic(id), TransactionTimeoutMs: 30_000,
			ProducerID: -1, ProducerEpoch: -1, // none yet; the client's default is the id 0
		})
		if err != nil {
			return false, err
		}
		found = made
		return made.Error == nil, nil
	})
	if err != nil {
		return nil, err
	}
	return &transaction{topic(id), found.Producer}, nil
}

func (t *transaction) write(ctx context.Context, text string, sequence int) error {
	var added *kafka.AddPartitionsToTxnResponse
	err := until(ctx, func() (bool, error) { // the transaction before this one may still be ending
		made, err := admin.AddPartitionsToTxn(ctx, &kafka.AddPartitionsToTxnRequest{
			TransactionalID: t.id, ProducerID: t.session.ProducerID, ProducerEpoch: t.session.ProducerEpoch,
			Topics: map[string][]kafka.AddPartitionToTxn{topic("txn"): {{Partition: 0}}},
		})
		added = made
		return err != nil || !errors.Is(made.Topics[topic("txn")][0].Error, kafka.ConcurrentTransactions), err
	})
	if err != nil {
		return err
	}
	return added.Topics[topic("txn")][0].Error
}

func (t *transaction) end(ctx context.Context, committed bool) error {
	done, err := admin.EndTxn(ctx, &kafka.EndTxnRequest{
		TransactionalID: t.id, ProducerID: t.session.ProducerID, ProducerEpoch: t.session.ProducerEpoch, Committed: committed,
	})
	if err != nil {
		return err
	}
	return done.Error
}

func transactionFeatures() {
	// The client has no batches of transactional producers: what these features write goes through
	// no transaction. It has the requests around them.
	fmt.Println("lacks txn-commit")
	fmt.Println("lacks txn-abort")
	check("txn-offsets", func(ctx context.Context) error {
		if _, err := create(ctx, "txn", 1); err != nil {
			return err
		}
		made, err := begin(ctx, "to")
		if err != nil {
			return err
		}
		if err := made.write(ctx, "kept", 0); err != nil {
			return err
		}
		added, err := admin.AddOffsetsToTxn(ctx, &kafka.AddOffsetsToTxnRequest{
			TransactionalID: made.id, ProducerID: made.session.ProducerID, ProducerEpoch: made.session.ProducerEpoch, GroupID: topic("gt"),
		})
		if err != nil || added.Error != nil {
			return fmt.Errorf("%v: %v", added, err)
		}
		stored, err := admin.TxnOffsetCommit(ctx, &kafka.TxnOffsetCommitRequest{
			TransactionalID: made.id, GroupID: topic("gt"), ProducerID: made.session.ProducerID, ProducerEpoch: made.session.ProducerEpoch,
			GenerationID: -1, Topics: map[string][]kafka.TxnOffsetCommit{topic("txn"): {{Partition: 0, Offset: 7}}},
		})
		if err != nil {
			return err
		}
		if err := stored.Topics[topic("txn")][0].Error; err != nil {
			return err
		}
		if err := made.end(ctx, true); err != nil {
			return err
		}
		return until(ctx, func() (bool, error) {
			at, err := groupOffset(ctx, "gt", topic("txn"), 0)
			return at == 7, err
		})
	})
	check("txn-fencing", func(ctx context.Context) error {
		older, err := begin(ctx, "f")
		if err != nil {
			return err
		}
		newer, err := begin(ctx, "f")
		if err != nil {
			return err
		}
		if err := newer.write(ctx, "new", 0); err != nil {
			return err
		}
		if err := newer.end(ctx, true); err != nil {
			return err
		}
		err = older.write(ctx, "late", 0)
		return want(errors.Is(err, kafka.InvalidProducerEpoch) || errors.Is(err, kafka.Error(90)), "%v", err)
	})
	fmt.Println("lacks txn-admin")
}

func groupOffset(ctx context.Context, group, name string, partition int) (int64, error) {
	found, err := admin.OffsetFetch(ctx, &kafka.OffsetFetchRequest{
		Addr: net.Addr(kafka.TCP(bootstrap)), GroupID: topic(group), Topics: map[string][]int{name: {partition}},
	})
	if err != nil {
		return 0, err
	}
	if found.Error != nil {
		return 0, found.Error
	}
	return found.Topics[name][0].CommittedOffset, found.Topics[name][0].Error
}
