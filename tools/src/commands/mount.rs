use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;

use anyhow::Context as _;
use batchfs_batch::View;
use batchfs_mount::{Delivery, Ended, Mounted, Options, Stopper};
use batchfs_store::Verify;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use super::dataset;
use crate::args::{Mount, When};
use crate::program;

/// What the daemon says on its standard output when the mount answers.
const READY: &str = "ready";

pub fn run(args: &Mount) -> anyhow::Result<ExitCode> {
    if !args.foreground && !args.daemon {
        return background();
    }
    // Before any thread is made, so that all of them leave these signals to the one that waits.
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    signals.thread_block()?;
    log(args)?;
    // A region in a reader's hands costs a descriptor here.
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    let mounted = mount(args)?;
    watch(signals, mounted.stopper())?;
    announce(args, &mounted)?;
    let dir = mounted.dir().to_owned();
    Ok(match mounted.serve(|line| eprintln!("batchfs: {line}")) {
        Ended::Clean => ExitCode::SUCCESS,
        Ended::Busy(holders) => {
            let by = if holders.is_empty() { "somebody".to_owned() } else { holders.join(", ") };
            eprintln!(
                "batchfs: {}: detached while in use by {by}; what they have mapped stays readable, what they open anew is gone",
                dir.display()
            );
            ExitCode::FAILURE
        }
        Ended::Broken(why) => {
            eprintln!("batchfs: {}: the mount ended: {why}", dir.display());
            ExitCode::FAILURE
        }
    })
}

fn mount(args: &Mount) -> anyhow::Result<Mounted> {
    // Before anything is opened: the path to the source may lead through the dead mount.
    let cleared = batchfs_mount::clear_dead(&args.dir)?;
    if cleared > 0 {
        eprintln!(
            "batchfs: {}: removed {cleared} batchfs mount(s) whose daemon had died",
            args.dir.display()
        );
    }
    let verify = match args.verify {
        When::First => Verify::First,
        When::Always => Verify::Always,
        When::Never => Verify::Never,
    };
    let source = std::fs::canonicalize(&args.source)
        .with_context(|| format!("{}: there is no such source", args.source.display()))?;
    let data = dataset(&source, verify)?;
    let view = Arc::new(View::new(0, "", data, args.spec)?);
    let options = Options {
        memory: args.memory.as_u64(),
        allow_other: args.allow_other,
        nonempty: args.nonempty,
        cached: args.cached,
        threads: args.threads,
    };
    Ok(batchfs_mount::mount(view, &args.dir, &options)?)
}

/// Starts this program again as the daemon and waits until the mount answers.
///
/// A new program rather than a fork: nothing is inherited half-made.
fn background() -> anyhow::Result<ExitCode> {
    let mut daemon = program::with("--daemon")?
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the daemon")?;
    let mut said = String::new();
    if let Some(stdout) = daemon.stdout.take() {
        BufReader::new(stdout).read_line(&mut said)?;
    }
    match said.strip_prefix(READY) {
        Some(rest) => {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{}", rest.trim())?;
            Ok(ExitCode::SUCCESS)
        }
        // It has said why on standard error, which it shares with us.
        None => {
            let status = daemon.wait()?;
            Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

/// Says that the mount answers; a daemon lets go of its terminal then.
fn announce(args: &Mount, mounted: &Mounted) -> anyhow::Result<()> {
    let how = match mounted.delivery() {
        Delivery::Passthrough => "passthrough".to_owned(),
        Delivery::Cached { why } => format!("cached replies: {why}"),
    };
    let line = format!("{} is mounted ({how})", mounted.dir().display());
    let mut out = std::io::stdout().lock();
    if !args.daemon {
        writeln!(out, "{line}; Ctrl-C unmounts")?;
        return Ok(());
    }
    writeln!(out, "{READY} {line}")?;
    out.flush()?;
    drop(out);
    nix::unistd::setsid()?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    nix::unistd::dup2_stdout(&null)?;
    match &args.log {
        Some(path) => {
            let log = OpenOptions::new().append(true).create(true).open(path)?;
            nix::unistd::dup2_stderr(&log)?;
        }
        None => nix::unistd::dup2_stderr(&null)?,
    }
    std::env::set_current_dir("/")?;
    Ok(())
}

/// What is logged: `BATCHFS_LOG`, such as `debug` or `batchfs_batch=trace,warn`, says otherwise.
fn log(args: &Mount) -> anyhow::Result<()> {
    let default = if args.log.is_some() { "info" } else { "warn,fuser=off" };
    let wanted = std::env::var("BATCHFS_LOG").unwrap_or_else(|_| default.to_owned());
    let filter: Targets = wanted.parse().with_context(|| format!("BATCHFS_LOG={wanted}"))?;
    let layer = tracing_subscriber::fmt::layer().with_ansi(false);
    let registry = tracing_subscriber::registry();
    match &args.log {
        Some(path) => {
            let log = OpenOptions::new()
                .append(true)
                .create(true)
                .open(path)
                .with_context(|| format!("{}: cannot be written", path.display()))?;
            registry.with(layer.with_writer(Arc::new(log)).with_filter(filter)).init();
        }
        None => registry.with(layer.with_writer(std::io::stderr).with_filter(filter)).init(),
    }
    Ok(())
}

/// Waits for signals on a thread of its own.
fn watch(signals: SigSet, stopper: Stopper) -> anyhow::Result<()> {
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        while signals.wait().is_ok() {
            stopper.stop();
        }
    })?;
    Ok(())
}
