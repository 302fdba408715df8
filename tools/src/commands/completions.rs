use std::io::Write as _;
use std::process::ExitCode;

use clap::CommandFactory as _;

use crate::args::{Args, Completions};
use crate::say;

pub fn run(args: &Completions) -> anyhow::Result<ExitCode> {
    let mut command = Args::command();
    let name = command.get_name().to_owned();
    // Made as a whole first: what is written to directly panics when it cannot be.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    let mut out = say::out();
    out.write_all(&script)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
