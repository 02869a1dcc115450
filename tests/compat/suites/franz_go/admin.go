package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

func only(name string, partitions ...int32) kadm.TopicsSet {
	set := kadm.TopicsSet{}
	set.Add(name, partitions...)
	return set
}

func groupOffset(ctx context.Context, partition int32) (int64, error) {
	found, err := admin.FetchOffsets(ctx, topic("g"))
	if err != nil {
		return 0, err
	}
	at, there := found.Lookup(topic("consume"), partition)
	if !there {
		return -1, nil
	}
	return at.At, at.Err
}

func adminFeatures() {
	name := topic("consume")
	check("describe-cluster", func(ctx context.Context) error {
		found, err := admin.Metadata(ctx)
		if err != nil {
			return err
		}
		return want(found.Controller >= 0 && found.Cluster != "", "%v", found)
	})
	value := func(ctx context.Context, key string) (string, error) {
		found, err := admin.DescribeTopicConfigs(ctx, name)
		if err != nil {
			return "", err
		}
		for _, config := range found[0].Configs {
			if config.Key == key {
				return config.MaybeValue(), nil
			}
		}
		return "", fmt.Errorf("no %s", key)
	}
	check("describe-configs", func(ctx context.Context) error {
		found, err := value(ctx, "cleanup.policy")
		if err != nil {
			return err
		}
		return want(found == "delete", "%s", found)
	})
	check("alter-configs", func(ctx context.Context) error {
		wanted := "1234567890"
		done, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: &wanted}}, name)
		if err != nil {
			return err
		}
		if done[0].Err != nil {
			return done[0].Err
		}
		return until(ctx, func() (bool, error) {
			found, err := value(ctx, "retention.ms")
			return found == wanted, err
		})
	})
	check("create-partitions", func(ctx context.Context) error {
		done, err := admin.UpdatePartitions(ctx, 5, topic("created"))
		if err != nil {
			return err
		}
		if err := done[topic("created")].Err; err != nil {
			return err
		}
		return until(ctx, func() (bool, error) {
			found, err := admin.ListTopics(ctx, topic("created"))
			return len(found[topic("created")].Partitions) == 5, err
		})
	})
	check("delete-records", func(ctx context.Context) error {
		offsets := kadm.Offsets{}
		offsets.AddOffset(name, 2, 150, -1)
		done, err := admin.DeleteRecords(ctx, offsets)
		if err != nil {
			return err
		}
		found, _ := done.Lookup(name, 2)
		return want(found.LowWatermark == 150, "%v", found)
	})
	check("list-groups", func(ctx context.Context) error {
		found, err := admin.ListGroups(ctx)
		if err != nil {
			return err
		}
		_, there := found[topic("g")]
		return want(there, "%v", found)
	})
	check("describe-group", func(ctx context.Context) error {
		reader := join("gd", topic("share"))
		defer reader.Close()
		if err := until(ctx, func() (bool, error) { return reader.count(ctx) == 4, nil }); err != nil {
			return err
		}
		found, err := admin.DescribeGroups(ctx, topic("gd"))
		if err != nil {
			return err
		}
		group := found[topic("gd")]
		return want(group.State == "Stable" && len(group.Members) == 1, "%v", group)
	})
	check("group-offsets", func(ctx context.Context) error {
		at, err := groupOffset(ctx, 1)
		if err != nil {
			return err
		}
		return want(at == 200, "%d", at)
	})
	check("reset-offsets", func(ctx context.Context) error {
		offsets := kadm.Offsets{}
		offsets.AddOffset(name, 0, 17, -1)
		if err := admin.CommitAllOffsets(ctx, topic("g"), offsets); err != nil {
			return err
		}
		at, err := groupOffset(ctx, 0)
		if err != nil {
			return err
		}
		return want(at == 17, "%d", at)
	})
	check("delete-offsets", func(ctx context.Context) error {
		done, err := admin.DeleteOffsets(ctx, topic("g"), only(name, 1))
		if err != nil {
			return err
		}
		if err := done.Error(); err != nil {
			return err
		}
		at, err := groupOffset(ctx, 1)
		if err != nil {
			return err
		}
		return want(at == -1, "%d", at)
	})
	check("delete-group", func(ctx context.Context) error {
		_, err := admin.DeleteGroup(ctx, topic("g"))
		return err
	})
	check("log-dirs", func(ctx context.Context) error {
		found, err := admin.DescribeAllLogDirs(ctx, only(name, 0, 1, 2))
		if err != nil {
			return err
		}
		size := int64(0)
		found.Each(func(each kadm.DescribedLogDir) { size += each.Size() })
		return want(size > 0, "%v", found)
	})
	check("elect-leaders", func(ctx context.Context) error {
		found, err := admin.ElectLeaders(ctx, kadm.ElectPreferredReplica, only(name, 0))
		if err != nil {
			return err
		}
		return want(errors.Is(found[name][0].Err, kerr.ElectionNotNeeded), "%v", found)
	})
	check("reassign", func(ctx context.Context) error {
		asked := kadm.AlterPartitionAssignmentsReq{}
		asked.Assign(name, 0, []int32{0})
		done, err := admin.AlterPartitionAssignments(ctx, asked)
		if err != nil {
			return err
		}
		if err := done.Error(); err != nil {
			return err
		}
		return until(ctx, func() (bool, error) {
			found, err := admin.ListPartitionReassignments(ctx, only(name, 0))
			return len(found) == 0, err
		})
	})
	check("quotas", func(ctx context.Context) error {
		who := topic("client")
		entity := kadm.ClientQuotaEntity{{Type: "client-id", Name: &who}}
		done, err := admin.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{{
			Entity: entity, Ops: []kadm.AlterClientQuotaOp{{Key: "producer_byte_rate", Value: 1e6}},
		}})
		if err != nil {
			return err
		}
		if done[0].Err != nil {
			return done[0].Err
		}
		return until(ctx, func() (bool, error) {
			found, err := admin.DescribeClientQuotas(ctx, false, []kadm.DescribeClientQuotaComponent{{Type: "client-id", MatchName: &who}})
			return len(found) == 1, err
		})
	})
	check("delete-topic", func(ctx context.Context) error {
		if _, err := admin.DeleteTopic(ctx, topic("created")); err != nil {
			return err
		}
		return until(ctx, func() (bool, error) {
			found, err := admin.ListTopics(ctx)
			return !found.Has(topic("created")), err
		})
	})
}
