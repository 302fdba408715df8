//! Foreign data as streams, read in place: .npy files
