use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use batchfs_mount::{Delivery, Ended, Mounted, Options, Prepared};
use batchfs_store::Verify;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use super::view;
use crate::args::{Mount, When};
use crate::daemon::{self, Start, Tether};
use crate::signals::Signals;
use crate::sys::Inherited;
use crate::{hidden, program, say};

pub fn run(mut args: Mount) -> anyhow::Result<ExitCode> {
    let shown = !args.tokens.sources.storage_option.is_empty();
    if args.storage_stdin {
        args.tokens.sources.storage_option.extend(hidden::read()?);
    }
    let storage = &args.tokens.sources.storage_option;
    // Behind the name of this command.
    let again = program::arguments();
    if !args.foreground && !args.daemon {
        return Ok(match daemon::start(&again, storage)? {
            Start::Answers(line) => {
                daemon::tell(&line);
                ExitCode::SUCCESS
            }
            Start::Failed(code) => ExitCode::from(code),
        });
    }
    if shown {
        // This process lives as long as the mount: it begins anew, with a command line that tells nothing.
        let mut front = program::again()?;
        front.args(["mount", hidden::FLAG]).args(hidden::without(&again));
        let error = front.stdin(hidden::stdin(storage)?).exec();
        return Err(anyhow::Error::new(error).context("cannot start anew"));
    }
    serve(&args)
}

/// Serves the mount from this process.
fn serve(args: &Mount) -> anyhow::Result<ExitCode> {
    let inherited = Inherited::find();
    let signals = Signals::watch()?;
    let log = args.log.as_ref().map(|path| {
        let open = OpenOptions::new().append(true).create(true).open(path);
        open.with_context(|| format!("{}: cannot be written", path.display()))
    });
    let log = log.transpose()?;
    let tether = args.daemon.then(|| Tether::new(inherited, log.as_ref())).transpose()?;
    write_log(log)?;
    // A region in a reader's hands costs a descriptor here.
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    clear_dead(args)?;
    let prepared = prepare(args)?;
    signals.mounting();
    let mounted = prepared.attach()?;
    signals.serving(mounted.stopper());
    // From here on nothing ends the mount but its unmounting.
    let line = answers(&mounted);
    match tether {
        Some(tether) => tether.cut(&line),
        None => {
            if let Err(e) = writeln!(say::out(), "{line}; Ctrl-C unmounts") {
                say::note(format_args!("{line}, but {e}"));
            }
        }
    }
    let dir = mounted.dir().to_owned();
    Ok(match mounted.serve(|line| say::note(line)) {
        Ended::Clean => ExitCode::SUCCESS,
        Ended::Busy(holders) => {
            let by = if holders.is_empty() { "somebody".to_owned() } else { holders.join(", ") };
            say::note(format_args!(
                "{}: detached while in use by {by}; what they have mapped stays readable, what they open anew is gone",
                dir.display()
            ));
            ExitCode::FAILURE
        }
        Ended::Broken(why) => {
            say::note(format_args!("{}: the mount ended: {why}", dir.display()));
            ExitCode::FAILURE
        }
    })
}

/// To be called before anything is opened: the path to the source may lead through the dead mount.
fn clear_dead(args: &Mount) -> anyhow::Result<()> {
    let cleared = batchfs_mount::clear_dead(&args.dir)?;
    if cleared > 0 {
        say::note(format_args!(
            "{}: removed {cleared} batchfs mount(s) whose daemon had died",
            args.dir.display()
        ));
    }
    Ok(())
}

/// Everything but the mount itself.
pub fn prepare(args: &Mount) -> anyhow::Result<Prepared> {
    let verify = match args.verify {
        When::First => Verify::First,
        When::Always => Verify::Always,
        When::Never => Verify::Never,
    };
    let Mount { source, spec, types, tokens, threads, resident, .. } = args;
    let view = view(source, spec.as_ref(), types, tokens, verify, *threads, *resident)?;
    let options = Options {
        memory: args.memory.as_u64(),
        allow_other: args.allow_other,
        nonempty: args.nonempty,
        cached: args.cached,
        threads: args.threads,
        dmabuf: args.dmabuf,
    };
    Ok(batchfs_mount::prepare(Arc::new(view), &args.dir, &options)?)
}

/// What is said when the mount answers.
fn answers(mounted: &Mounted) -> String {
    let how = match mounted.delivery() {
        Delivery::Passthrough => "passthrough".to_owned(),
        Delivery::Cached { why } => format!("cached replies: {why}"),
    };
    format!("{} is mounted ({how})", mounted.dir().display())
}

/// What is logged: `BATCHFS_LOG`, such as `debug` or `batchfs_batch=trace,warn`, says otherwise.
fn write_log(log: Option<File>) -> anyhow::Result<()> {
    let default =
        if log.is_some() { "info" } else { "warn,fuser=off,rustls_platform_verifier=off" };
    let wanted = std::env::var("BATCHFS_LOG").unwrap_or_else(|_| default.to_owned());
    let filter: Targets = wanted.parse().with_context(|| format!("BATCHFS_LOG={wanted}"))?;
    // A log that cannot be written, on a full disk say, must not be told on standard error, which
    // is that log: it would be a panic.
    let layer = tracing_subscriber::fmt::layer().with_ansi(false).log_internal_errors(false);
    let registry = tracing_subscriber::registry();
    match log {
        Some(log) => registry.with(layer.with_writer(Arc::new(log)).with_filter(filter)).init(),
        None => registry.with(layer.with_writer(std::io::stderr).with_filter(filter)).init(),
    }
    Ok(())
}
