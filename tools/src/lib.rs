//! `batchfs`: training data as files. The command line, for the program and for the Python package.

mod args;
mod commands;
mod demo;
mod doctor;
mod program;
mod progress;

use std::ffi::OsString;
use std::process::ExitCode;

use args::Command;
use clap::Parser as _;

/// Runs the command line `args`, without the program's name. `program` is what starts this program
/// again, if that is not the running executable: a mount in the background is a process of its own.
pub fn run(program: Option<Vec<OsString>>, args: Vec<OsString>) -> ExitCode {
    let named = std::iter::once("batchfs".into()).chain(args.iter().cloned());
    let parsed = match args::Args::try_parse_from(named) {
        Ok(parsed) => parsed,
        Err(said) => {
            // Help, a version or a refusal; a closed pipe has nobody to be told.
            let _ = said.print();
            return ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(2));
        }
    };
    program::remember(program, args);
    let result = match parsed.command {
        Command::Create(args) => commands::create::run(&args),
        Command::TrainDict(args) => commands::train_dict::run(&args),
        Command::Info(args) => commands::info::run(&args),
        Command::Verify(args) => commands::verify::run(&args),
        Command::Ids(args) => commands::ids::run(&args),
        Command::Mount(args) => commands::mount::run(&args),
        Command::Umount(args) => commands::umount::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Demo(args) => demo::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("batchfs: {}", told(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes on one line; most errors say their cause themselves.
fn told(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, next| match said.as_str() {
        "" => next,
        said if said.contains(&next) => said.to_owned(),
        said => format!("{said}: {next}"),
    })
}

/// `batchfs ids … | head` is no failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
