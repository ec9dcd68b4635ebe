"""Trees played in processes of their own (`collect.processes`), beside the engine and the learner."""
