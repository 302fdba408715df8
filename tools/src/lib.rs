//! `batchfs`: training data as files. The command line, for the program and for the Python package.
// A failed `println!` panics; `say` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod commands;
mod daemon;
mod demo;
mod doctor;
mod gpu;
mod helper;
mod hidden;
mod parents;
mod program;
mod progress;
mod say;
mod signals;
mod sys;

use std::ffi::OsString;
use std::process::ExitCode;

use args::Command;
use clap::Parser as _;

/// What shells show of a program that a closed pipe has ended.
const CLOSED_PIPE: u8 = 128 + 13;

/// Runs as the running executable was called: as `batchfs`, or as the helper of mount(8).
pub fn main() -> ExitCode {
    if helper::is_called() {
        return helper::main();
    }
    run(None, std::env::args_os().skip(1).collect())
}

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
        Command::Export(args) => commands::export::run(&args),
        Command::TrainDict(args) => commands::train_dict::run(&args),
        Command::Info(args) => commands::info::run(&args),
        Command::Index(args) => commands::index::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Verify(args) => commands::verify::run(&args),
        Command::Ids(args) => commands::ids::run(&args),
        Command::Ls(args) => commands::ls::run(&args),
        Command::Cat(args) => commands::cat::run(&args),
        Command::Mount(args) => commands::mount::run(args),
        Command::Umount(args) => commands::umount::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Completions(args) => commands::completions::run(&args),
        Command::Man(args) => commands::man::run(&args),
    };
    match result {
        Ok(code) => code,
        // `batchfs ids … | head` has nothing to complain about, but has not done its work either.
        Err(error) if say::is_closed(&error) => ExitCode::from(CLOSED_PIPE),
        Err(error) => {
            say::note(told(&error));
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
