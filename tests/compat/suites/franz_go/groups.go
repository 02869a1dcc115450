package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// member counts what it is assigned, so that a feature can wait for it.
type member struct {
	*kgo.Client
	lock sync.Mutex
	held map[int32]bool
}

func join(group, name string, options ...kgo.Opt) *member {
	made := &member{held: map[int32]bool{}}
	change := func(held bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			made.lock.Lock()
			defer made.lock.Unlock()
			for _, number := range parts[name] {
				if held {
					made.held[number] = true
				} else {
					delete(made.held, number)
				}
			}
		}
	}
	options = append([]kgo.Opt{
		kgo.ConsumerGroup(prefix + "-" + group), kgo.ConsumeTopics(name), kgo.DisableAutoCommit(),
		kgo.HeartbeatInterval(500 * time.Millisecond), kgo.FetchMaxWait(300 * time.Millisecond),
		kgo.OnPartitionsAssigned(change(true)), kgo.OnPartitionsRevoked(change(false)), kgo.OnPartitionsLost(change(false)),
	}, options...)
	made.Client = client(options...)
	return made
}

func (m *member) count(ctx context.Context) int {
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	m.PollFetches(short)
	m.lock.Lock()
	defer m.lock.Unlock()
	return len(m.held)
}

func share(ctx context.Context, group, name string, options ...kgo.Opt) error {
	first := join(group, name, options...)
	defer first.Close()
	all := func() (bool, error) { return first.count(ctx) == 4, nil }
	if err := until(ctx, all); err != nil {
		return err
	}
	second := join(group, name, options...)
	err := until(ctx, func() (bool, error) { return first.count(ctx) == 2 && second.count(ctx) == 2, nil })
	second.Close()
	if err != nil {
		return err
	}
	return until(ctx, all)
}

func groupFeatures() {
	check("group", func(ctx context.Context) error {
		reader := join("g", topic("consume"))
		defer reader.Close()
		rows, err := poll(ctx, reader.Client, 600)
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
		return reader.CommitUncommittedOffsets(ctx)
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
			reader := join("gc", name)
			rows, err := poll(ctx, reader.Client, 50)
			if err == nil {
				err = reader.CommitUncommittedOffsets(ctx)
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
		return share(ctx, "gr", name, kgo.Balancers(kgo.RangeBalancer()))
	})
	check("group-cooperative", func(ctx context.Context) error {
		return share(ctx, "gx", topic("share"), kgo.Balancers(kgo.CooperativeStickyBalancer()))
	})
	check("static-member", func(ctx context.Context) error {
		for range 2 {
			reader := join("gs", topic("share"), kgo.InstanceID("one"))
			err := until(ctx, func() (bool, error) { return reader.count(ctx) == 4, nil })
			reader.Close()
			if err != nil {
				return err
			}
		}
		found, err := admin.DescribeGroups(ctx, topic("gs"))
		if err != nil {
			return err
		}
		members := found[topic("gs")].Members
		return want(len(members) == 1 && members[0].InstanceID != nil, "%v", members)
	})
}

func transaction(id string, options ...kgo.Opt) *kgo.Client {
	return client(append(options, kgo.TransactionalID(topic(id)), kgo.DefaultProduceTopic(topic("txn")))...)
}

func transactionFeatures() {
	committed := kgo.FetchIsolationLevel(kgo.ReadCommitted())
	write := func(ctx context.Context, producer *kgo.Client, text string, end kgo.TransactionEndTry) error {
		if err := producer.BeginTransaction(); err != nil {
			return err
		}
		if err := producer.ProduceSync(ctx, kgo.StringRecord(text)).FirstErr(); err != nil {
			return err
		}
		return producer.EndTransaction(ctx, end)
	}
	check("txn-commit", func(ctx context.Context) error {
		if _, err := create(ctx, "txn", 1); err != nil {
			return err
		}
		producer := transaction("t")
		defer producer.Close()
		if err := write(ctx, producer, "kept-1", kgo.TryCommit); err != nil {
			return err
		}
		rows, err := read(ctx, topic("txn"), 1, 1, committed)
		if err != nil {
			return err
		}
		return want(string(rows[0].Value) == "kept-1", "%s", rows[0].Value)
	})
	check("txn-abort", func(ctx context.Context) error {
		producer := transaction("t")
		defer producer.Close()
		if err := write(ctx, producer, "dropped", kgo.TryAbort); err != nil {
			return err
		}
		if err := write(ctx, producer, "kept-2", kgo.TryCommit); err != nil {
			return err
		}
		rows, err := read(ctx, topic("txn"), 1, 2, committed)
		if err != nil {
			return err
		}
		if string(rows[1].Value) != "kept-2" {
			return fmt.Errorf("read_committed shows %s", rows[1].Value)
		}
		rows, err = read(ctx, topic("txn"), 1, 3)
		if err != nil {
			return err
		}
		return want(string(rows[1].Value) == "dropped", "%s", rows[1].Value)
	})
	check("txn-offsets", func(ctx context.Context) error {
		session, err := kgo.NewGroupTransactSession(
			kgo.SeedBrokers(bootstrap), kgo.TransactionalID(topic("to")), kgo.ConsumerGroup(topic("gt")),
			kgo.ConsumeTopics(topic("consume")), kgo.DefaultProduceTopic(topic("txn")),
			kgo.RequireStableFetchOffsets(), committed,
		)
		if err != nil {
			return err
		}
		defer session.Close()
		for count := 0; count < 600; {
			fetches := session.PollFetches(ctx)
			if err := fetches.Err0(); err != nil {
				return err
			}
			count += fetches.NumRecords()
		}
		if err := session.Begin(); err != nil {
			return err
		}
		if err := session.ProduceSync(ctx, kgo.StringRecord("kept-3")).FirstErr(); err != nil {
			return err
		}
		if done, err := session.End(ctx, kgo.TryCommit); err != nil || !done {
			return fmt.Errorf("committed %v: %v", done, err)
		}
		// The request of all topics has no row for a first offset whose transaction is not complete.
		return until(ctx, func() (bool, error) {
			offsets, err := admin.FetchOffsets(ctx, topic("gt"))
			sum := int64(0)
			for _, each := range offsets.Sorted() {
				sum += each.At
			}
			return sum == 600, err
		})
	})
	check("txn-fencing", func(ctx context.Context) error {
		older, newer := transaction("f"), transaction("f")
		defer newer.Close()
		defer older.Close()
		if err := write(ctx, older, "kept-4", kgo.TryCommit); err != nil {
			return err
		}
		if err := write(ctx, newer, "kept-5", kgo.TryCommit); err != nil {
			return err
		}
		err := write(ctx, older, "late", kgo.TryCommit)
		return want(errors.Is(err, kerr.InvalidProducerEpoch) || errors.Is(err, kerr.ProducerFenced), "%v", err)
	})
	check("txn-admin", func(ctx context.Context) error {
		producer := transaction("ta")
		defer producer.Close()
		if err := producer.BeginTransaction(); err != nil {
			return err
		}
		if err := producer.ProduceSync(ctx, kgo.StringRecord("open")).FirstErr(); err != nil {
			return err
		}
		found, err := admin.DescribeTransactions(ctx, topic("ta"))
		if err != nil {
			return err
		}
		if found[topic("ta")].State != "Ongoing" {
			return fmt.Errorf("%v", found)
		}
		return producer.EndTransaction(ctx, kgo.TryCommit)
	})
}
