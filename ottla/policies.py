"""Policies of an installation: the public names. docs/operations.md has an example.

    from ottla.policies import PolicyViolation, TopicCreation

    class Small:
        def validate(self, topic: TopicCreation) -> None:
            if (topic.num_partitions or 0) > 50:
                raise PolicyViolation("at most 50 partitions")

with `create.topic.policy.class.name=module.Small`, and in the same way with
`alter.config.policy.class.name`, whose class gets a `ConfigAlteration`. `configure`, if the class
has it, gets the settings of the broker's file as text before the first call. `validate` is called
on the event loop: it must return at once, without input or output.
"""

from ottla.broker.config.policies import ConfigAlteration, PolicyViolation, TopicCreation

__all__ = ["ConfigAlteration", "PolicyViolation", "TopicCreation"]
