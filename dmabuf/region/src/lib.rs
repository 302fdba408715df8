//! Memory for batches: huge pages, pools, safe reuse, one byte budget
