package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/IBM/sarama"
)

func groupOffset(partition int32) (int64, error) {
	name := topic("consume")
	found, err := admin.ListConsumerGroupOffsets(topic("g"), map[string][]int32{name: {partition}})
	if err != nil {
		return 0, err
	}
	block := found.GetBlock(name, partition)
	if block == nil {
		return 0, errors.New("no answer for the partition")
	}
	return block.Offset, nil
}

func adminFeatures() {
	name := topic("consume")
	check("describe-cluster", func() error {
		brokers, controller, err := admin.DescribeCluster()
		if err != nil {
			return err
		}
		return want(fmt.Sprint(len(brokers)) == os.Getenv("COMPAT_BROKERS") && controller >= 0, "%d brokers", len(brokers))
	})
	value := func(key string) (string, error) {
		found, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: name})
		if err != nil {
			return "", err
		}
		for _, entry := range found {
			if entry.Name == key {
				return entry.Value, nil
			}
		}
		return "", fmt.Errorf("no %s", key)
	}
	check("describe-configs", func() error {
		found, err := value("cleanup.policy")
		if err != nil {
			return err
		}
		return want(found == "delete", "%s", found)
	})
	check("alter-configs", func() error {
		wanted := "1234567890"
		change := map[string]sarama.IncrementalAlterConfigsEntry{"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &wanted}}
		if err := admin.IncrementalAlterConfig(sarama.TopicResource, name, change, false); err != nil {
			return err
		}
		return until(func() (bool, error) {
			found, err := value("retention.ms")
			return found == wanted, err
		})
	})
	check("create-partitions", func() error {
		if err := admin.CreatePartitions(topic("created"), 5, nil, false); err != nil {
			return err
		}
		return until(func() (bool, error) {
			found, err := admin.ListTopics()
			return found[topic("created")].NumPartitions == 5, err
		})
	})
	check("delete-records", func() error {
		if err := admin.DeleteRecords(name, map[int32]int64{2: 150}); err != nil {
			return err
		}
		rows, err := read(config(), name, 2, 1)
		if err != nil {
			return err
		}
		return want(rows[0].Offset == 150, "%d", rows[0].Offset)
	})
	check("list-groups", func() error {
		found, err := admin.ListConsumerGroups()
		if err != nil {
			return err
		}
		_, there := found[topic("g")]
		return want(there, "%v", found)
	})
	check("describe-group", func() error {
		reader, err := join("gd", topic("share"), nil)
		if err != nil {
			return err
		}
		defer reader.close()
		if err := until(func() (bool, error) { return reader.count() == 4, nil }); err != nil {
			return err
		}
		found, err := admin.DescribeConsumerGroups([]string{topic("gd")})
		if err != nil {
			return err
		}
		return want(found[0].State == "Stable" && len(found[0].Members) == 1, "%v", found[0])
	})
	check("group-offsets", func() error {
		at, err := groupOffset(1)
		if err != nil {
			return err
		}
		return want(at == 200, "%d", at)
	})
	check("reset-offsets", func() error {
		offsets := map[string]map[int32]sarama.OffsetAndMetadata{name: {0: {Offset: 17, LeaderEpoch: -1}}}
		if _, err := admin.AlterConsumerGroupOffsets(topic("g"), offsets, nil); err != nil {
			return err
		}
		at, err := groupOffset(0)
		if err != nil {
			return err
		}
		return want(at == 17, "%d", at)
	})
	check("delete-offsets", func() error {
		if err := admin.DeleteConsumerGroupOffset(topic("g"), name, 1); err != nil {
			return err
		}
		at, err := groupOffset(1)
		if err != nil {
			return err
		}
		return want(at == -1, "%d", at)
	})
	check("delete-group", func() error { return admin.DeleteConsumerGroup(topic("g")) })
	check("log-dirs", func() error {
		brokers, _, err := admin.DescribeCluster()
		if err != nil {
			return err
		}
		found, err := admin.DescribeLogDirs([]int32{brokers[0].ID()})
		if err != nil {
			return err
		}
		for _, directories := range found {
			for _, directory := range directories {
				for _, each := range directory.Topics {
					if each.Topic == name {
						return nil
					}
				}
			}
		}
		return fmt.Errorf("%v", found)
	})
	check("elect-leaders", func() error {
		found, err := admin.ElectLeaders(sarama.PreferredElection, map[string][]int32{name: {0}})
		if err != nil {
			return err
		}
		return want(found[name][0].ErrorCode == 84, "%v", found[name][0])
	})
	check("reassign", func() error {
		if err := admin.AlterPartitionReassignments(name, [][]int32{{0}, {0}, {0}}); err != nil {
			return err
		}
		return until(func() (bool, error) {
			found, err := admin.ListPartitionReassignments(name, []int32{0, 1, 2})
			return len(found[name]) == 0, err
		})
	})
	check("quotas", func() error {
		entity := []sarama.QuotaEntityComponent{{EntityType: sarama.QuotaEntityClientID, MatchType: sarama.QuotaMatchExact, Name: topic("client")}}
		if err := admin.AlterClientQuotas(entity, sarama.ClientQuotasOp{Key: "producer_byte_rate", Value: 1e6}, false); err != nil {
			return err
		}
		return until(func() (bool, error) {
			filter := []sarama.QuotaFilterComponent{{EntityType: sarama.QuotaEntityClientID, MatchType: sarama.QuotaMatchExact, Match: topic("client")}}
			found, err := admin.DescribeClientQuotas(filter, false)
			return len(found) == 1, err
		})
	})
	check("delete-topic", func() error {
		if err := admin.DeleteTopic(topic("created")); err != nil {
			return err
		}
		return until(func() (bool, error) {
			found, err := admin.ListTopics()
			_, there := found[topic("created")]
			return !there, err
		})
	})
}
