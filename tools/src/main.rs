//! `batchfs`: training data as files.

use std::process::ExitCode;

fn main() -> ExitCode {
    batchfs_tools::main()
}
