package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"
)

func setting(ctx context.Context, name, key string) (string, error) {
	found, err := admin.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{
		{ResourceType: kafka.ResourceTypeTopic, ResourceName: name},
	}})
	if err != nil {
		return "", err
	}
	for _, entry := range found.Resources[0].ConfigEntries {
		if entry.ConfigName == key {
			return entry.ConfigValue, nil
		}
	}
	return "", fmt.Errorf("no %s: %v", key, found.Resources[0].Error)
}

func adminFeatures() {
	name := topic("consume")
	check("describe-cluster", func(ctx context.Context) error {
		found, err := metadata(ctx)
		if err != nil {
			return err
		}
		return want(found.Controller.Port > 0 && found.ClusterID != "", "%v", found)
	})
	check("describe-configs", func(ctx context.Context) error {
		found, err := setting(ctx, name, "cleanup.policy")
		if err != nil {
			return err
		}
		return want(found == "delete", "%s", found)
	})
	check("alter-configs", func(ctx context.Context) error {
		done, err := admin.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
			Resources: []kafka.IncrementalAlterConfigsRequestResource{{
				ResourceType: kafka.ResourceTypeTopic, ResourceName: name,
				Configs: []kafka.IncrementalAlterConfigsRequestConfig{{Name: "retention.ms", Value: "1234567890", ConfigOperation: kafka.ConfigOperationSet}},
			}},
		})
		if err != nil {
			return err
		}
		if done.Resources[0].Error != nil {
			return done.Resources[0].Error
		}
		return until(ctx, func() (bool, error) {
			found, err := setting(ctx, name, "retention.ms")
			return found == "1234567890", err
		})
	})
	check("create-partitions", func(ctx context.Context) error {
		done, err := admin.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{
			Topics: []kafka.TopicPartitionsConfig{{Name: topic("created"), Count: 5}},
		})
		if err != nil {
			return err
		}
		if err := done.Errors[topic("created")]; err != nil {
			return err
		}
		return until(ctx, func() (bool, error) {
			found, err := metadata(ctx, topic("created"))
			return err == nil && len(found.Topics[0].Partitions) == 5, err
		})
	})
	fmt.Println("lacks delete-records")
	check("list-groups", func(ctx context.Context) error {
		found, err := admin.ListGroups(ctx, &kafka.ListGroupsRequest{})
		if err != nil {
			return err
		}
		for _, group := range found.Groups {
			if group.GroupID == topic("g") {
				return nil
			}
		}
		return fmt.Errorf("%v", found)
	})
	check("describe-group", func(ctx context.Context) error {
		one, err := hold("gd", topic("share"))
		if err != nil {
			return err
		}
		defer one.group.Close()
		if err := until(ctx, func() (bool, error) { return one.count() == 4, nil }); err != nil {
			return err
		}
		found, err := admin.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{topic("gd")}})
		if err != nil {
			return err
		}
		group := found.Groups[0]
		return want(group.GroupState == "Stable" && len(group.Members) == 1, "%v", group)
	})
	check("group-offsets", func(ctx context.Context) error {
		at, err := groupOffset(ctx, "g", name, 1)
		if err != nil {
			return err
		}
		return want(at == 200, "%d", at)
	})
	check("reset-offsets", func(ctx context.Context) error {
		done, err := admin.OffsetCommit(ctx, &kafka.OffsetCommitRequest{
			GroupID: topic("g"), GenerationID: -1, Topics: map[string][]kafka.OffsetCommit{name: {{Partition: 0, Offset: 17}}},
		})
		if err != nil {
			return err
		}
		if err := done.Topics[name][0].Error; err != nil {
			return err
		}
		at, err := groupOffset(ctx, "g", name, 0)
		if err != nil {
			return err
		}
		return want(at == 17, "%d", at)
	})
	check("delete-offsets", func(ctx context.Context) error {
		done, err := admin.OffsetDelete(ctx, &kafka.OffsetDeleteRequest{GroupID: topic("g"), Topics: map[string][]int{name: {1}}})
		if err != nil {
			return err
		}
		if done.Error != nil || done.Topics[name][0].Error != nil {
			return fmt.Errorf("%v", done)
		}
		at, err := groupOffset(ctx, "g", name, 1)
		if err != nil {
			return err
		}
		return want(at == -1, "%d", at)
	})
	check("delete-group", func(ctx context.Context) error {
		done, err := admin.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{topic("g")}})
		if err != nil {
			return err
		}
		return done.Errors[topic("g")]
	})
	fmt.Println("lacks log-dirs")
	check("elect-leaders", func(ctx context.Context) error {
		found, err := admin.ElectLeaders(ctx, &kafka.ElectLeadersRequest{Topic: name, Partitions: []int{0}})
		if err != nil {
			return err
		}
		return want(len(found.PartitionResults) == 1 && errors.Is(found.PartitionResults[0].Error, kafka.ElectionNotNeeded), "%v", found)
	})
	check("reassign", func(ctx context.Context) error {
		done, err := admin.AlterPartitionReassignments(ctx, &kafka.AlterPartitionReassignmentsRequest{
			Topic: name, Assignments: []kafka.AlterPartitionReassignmentsRequestAssignment{{PartitionID: 0, BrokerIDs: []int{0}}}, Timeout: deadline,
		})
		if err != nil {
			return err
		}
		if done.Error != nil {
			return done.Error
		}
		return until(ctx, func() (bool, error) {
			found, err := admin.ListPartitionReassignments(ctx, &kafka.ListPartitionReassignmentsRequest{
				Topics: map[string]kafka.ListPartitionReassignmentsRequestTopic{name: {PartitionIndexes: []int{0}}}, Timeout: deadline,
			})
			return err == nil && len(found.Topics) == 0, err
		})
	})
	check("quotas", func(ctx context.Context) error {
		done, err := admin.AlterClientQuotas(ctx, &kafka.AlterClientQuotasRequest{Entries: []kafka.AlterClientQuotaEntry{{
			Entities: []kafka.AlterClientQuotaEntity{{EntityType: "client-id", EntityName: topic("client")}},
			Ops:      []kafka.AlterClientQuotaOps{{Key: "producer_byte_rate", Value: 1e6}},
		}}})
		if err != nil {
			return err
		}
		if done.Entries[0].Error != nil {
			return done.Entries[0].Error
		}
		return until(ctx, func() (bool, error) {
			found, err := admin.DescribeClientQuotas(ctx, &kafka.DescribeClientQuotasRequest{Components: []kafka.DescribeClientQuotasRequestComponent{
				{EntityType: "client-id", MatchType: 0, Match: topic("client")},
			}})
			return err == nil && len(found.Entries) == 1, err
		})
	})
	check("delete-topic", func(ctx context.Context) error {
		done, err := admin.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic("created")}})
		if err != nil {
			return err
		}
		if err := done.Errors[topic("created")]; err != nil {
			return err
		}
		return until(ctx, func() (bool, error) {
			found, err := metadata(ctx)
			if err != nil {
				return false, err
			}
			for _, each := range found.Topics {
				if each.Name == topic("created") {
					return false, nil
				}
			}
			return true, nil
		})
	})
}
