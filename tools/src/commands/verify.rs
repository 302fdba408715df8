use std::io::Write as _;
use std::process::ExitCode;

use batchfs_store::{OpenOptions, Store, Verify as When, verify};

use super::dataset;
use crate::args::Verify;
use crate::{progress, say};

pub fn run(args: &Verify) -> anyhow::Result<ExitCode> {
    let data = dataset(&args.path, When::Never, &args.types)?;
    let mut out = say::out();
    let mut whole = true;
    for stream in data.streams() {
        let path = stream.stream.origin();
        if !path.is_dir() {
            writeln!(
                out,
                "{}: a .npy file has no checksums; its length fits its header",
                path.display()
            )?;
            continue;
        }
        let bytes = Store::open(path, OpenOptions::verify(When::Never))?.payload_bytes();
        let bar = progress::bytes(bytes, "verifying");
        let report = verify(path, &|done| bar.inc(done))?;
        bar.finish_and_clear();
        for problem in &report.first {
            writeln!(out, "{problem}")?;
        }
        let unlisted = report.problems - report.first.len() as u64;
        if unlisted > 0 {
            writeln!(out, "{}: and {unlisted} more", path.display())?;
        }
        if report.is_whole() {
            writeln!(
                out,
                "{}: {} records, {} bytes: whole",
                path.display(),
                report.records,
                report.bytes
            )?;
        } else {
            writeln!(
                out,
                "{}: {} problem(s) in {} records",
                path.display(),
                report.problems,
                report.records
            )?;
            whole = false;
        }
    }
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
