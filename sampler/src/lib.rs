//! Which record ids make up the batch of a step.
