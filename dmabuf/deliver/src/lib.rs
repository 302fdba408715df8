//! Batches for devices and for other processes: dma-bufs over the pages of a region, buffers of a
//! render node, the service that hands out descriptors, and HIP.
