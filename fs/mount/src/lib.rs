//! The FUSE tree: names, nodes, handles, passthrough
