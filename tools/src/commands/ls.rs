use std::io::Write as _;
use std::process::ExitCode;

use batchfs_mount::NameError;

use super::unmounted;
use crate::args::Ls;
use crate::say;

pub fn run(args: &Ls) -> anyhow::Result<ExitCode> {
    let tree = unmounted(&args.source, &args.order)?;
    let mut out = std::io::BufWriter::new(say::out());
    let mut written = Ok(());
    let listed = tree.list(&args.name, |name, is_dir| {
        written = writeln!(out, "{name}{}", if is_dir { "/" } else { "" });
        written.is_err()
    });
    match listed {
        // As `ls` does with a file.
        Err(NameError::File { name }) if name == args.name => writeln!(out, "{name}")?,
        listed => listed?,
    }
    written?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
