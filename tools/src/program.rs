//! This program, to be started again as a process of its own.

use std::ffi::OsString;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::Context as _;

/// What starts it, if that is not the running executable, and the arguments that it has now.
static STARTED: OnceLock<(Option<Vec<OsString>>, Vec<OsString>)> = OnceLock::new();

pub fn remember(program: Option<Vec<OsString>>, args: Vec<OsString>) {
    // A second call, in a process that runs several commands, starts with the same program.
    let _ = STARTED.set((program, args));
}

/// The program without arguments.
pub fn again() -> anyhow::Result<Command> {
    if let Some([name, front @ ..]) = STARTED.get().and_then(|(program, _)| program.as_deref()) {
        let mut command = Command::new(name);
        command.args(front);
        return Ok(command);
    }
    Ok(Command::new(std::env::current_exe().context("cannot find this program's file")?))
}

/// The program with the arguments that it has now, and `option` behind the command's name: at the
/// end it could come to stand behind a `--`.
pub fn with(option: &str) -> anyhow::Result<Command> {
    let mut command = again()?;
    if let Some([name, rest @ ..]) = STARTED.get().map(|(_, args)| args.as_slice()) {
        command.arg(name).arg(option).args(rest);
    }
    Ok(command)
}
