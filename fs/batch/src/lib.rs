//! Plan, layout and parallel gather of batches; prefetch in step order
