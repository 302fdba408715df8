//! This program, to be started again as a process of its own.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
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
    let mut command =
        Command::new(std::env::current_exe().context("cannot find this program's file")?);
    // Its file may have another name, under which it is the helper of mount(8).
    command.arg0("batchfs");
    Ok(command)
}

/// The arguments that it has now, behind the command's name.
pub fn arguments() -> Vec<OsString> {
    let args = STARTED.get().map_or(&[][..], |(_, args)| args.as_slice());
    args.iter().skip(1).cloned().collect()
}
