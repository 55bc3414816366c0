"""The sharded dataflow graph and its lowering to a plan."""
