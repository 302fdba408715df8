//! `batchfs`: training data as files.

use std::process::ExitCode;

fn main() -> ExitCode {
    batchfs_tools::run(None, std::env::args_os().skip(1).collect())
}
