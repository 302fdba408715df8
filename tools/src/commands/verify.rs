use std::io::Write as _;
use std::process::ExitCode;

use batchfs_source::Kind;
use batchfs_store::{Verify as When, read_all, verify};

use super::dataset;
use crate::args::Verify;
use crate::{progress, say};

pub fn run(args: &Verify) -> anyhow::Result<ExitCode> {
    let data = dataset(&args.path, When::Never, &args.types)?;
    let mut out = say::out();
    let mut whole = true;
    for stream in data.streams() {
        let path = stream.stream.origin();
        let bar = progress::bytes(stream.stream.payload_bytes(), "verifying");
        let done = |bytes| bar.inc(bytes);
        let kind = Kind::of(path)?;
        let report = match kind {
            Kind::Store | Kind::Folder => verify(path, &done)?,
            _ => read_all(&*stream.stream, &done)?,
        };
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
                "{}: {} records, {} bytes: {}",
                path.display(),
                report.records,
                report.bytes,
                match kind {
                    Kind::Zrecord => "all can be read; a zrecord container has no checksums",
                    Kind::Npy | Kind::RaggedNpy => "all can be read; a .npy file has no checksums",
                    _ => "whole",
                }
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
