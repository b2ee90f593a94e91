"""Room: chores any worker may do: promote, rescue, partitions."""
