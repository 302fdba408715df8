use std::io::Write as _;
use std::process::ExitCode;

use clap::{Command, CommandFactory as _};

use crate::args::{Args, Completions};
use crate::say;

pub fn run(args: &Completions) -> anyhow::Result<ExitCode> {
    // The generators do not know that an argument is hidden.
    let mut command = Args::command().mut_subcommand("mount", |mount| {
        let shown = mount.get_arguments().filter(|arg| !arg.is_hide_set()).cloned();
        Command::new("mount").about(mount.get_about().cloned().unwrap_or_default()).args(shown)
    });
    let name = command.get_name().to_owned();
    // Made as a whole first: what is written to directly panics when it cannot be.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    let mut out = say::out();
    out.write_all(&script)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
