//! `mount.batchfs`: what mount(8) runs for the type `batchfs`.

mod options;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};

use crate::args::{Args, Command, Mount};
use crate::commands;
use crate::daemon::{self, Start};
use crate::{hidden, say, told};
use options::Options;

/// Names under which mount(8) looks for its helper: for `-t batchfs`, and for the type that mounts have.
const NAMES: [&str; 2] = ["mount.batchfs", "mount.fuse.batchfs"];

/// What mount(8) shows of an invocation that is wrong, and of a mount that failed.
const USAGE: u8 = 1;
const FAILED: u8 = 32;

/// Mount a dataset: the helper of mount(8) for the type batchfs.
///
/// Not to be called by hand: mount(8) and systemd find this program under the name
/// /sbin/mount.batchfs, a link to batchfs.
#[derive(Debug, Parser)]
#[command(name = "mount.batchfs", version, after_help = HELP)]
struct Helper {
    /// A store, a zrecord container, a .npy file, a folder of these, or Parquet
    source: PathBuf,
    /// The empty folder to mount on
    dir: PathBuf,
    /// Options, separated by commas, see below; the last of a name holds
    #[arg(short, value_name = "OPTION,…")]
    options: Vec<String>,
    /// Do everything but mount
    #[arg(short)]
    fake: bool,
    /// Take no notice of options that are not known
    #[arg(short)]
    sloppy: bool,
    /// Say what is done
    #[arg(short)]
    verbose: bool,
    /// Leave /etc/mtab alone, which is always so
    #[arg(short)]
    no_mtab: bool,
    /// Read-only, which is always so
    #[arg(short)]
    read_only: bool,
    /// Also read-only
    #[arg(short)]
    writable: bool,
    /// The type that mount(8) was asked for
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
    /// Another mount namespace; not possible, take `nsenter -m` instead
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<PathBuf>,
}

const HELP: &str = "\
Options of the order, see batchfs mount --help:
  mode=, batch=, seed=, remainder=, rank=, world=, and of tokens lanes=, window=, seq_len=, pieces=, out=

Options of the mount:
  memory=SIZE           bytes that all batches in memory may take together
  threads=N             threads that gather
  verify=WHEN           when to compare checksums: first, always, never
  resident              read all records into memory first
  dmabuf                put batches into memory that dma-bufs can be made of
  cached                answer reads even where the kernel could read by itself
  dtype=[STREAM=]DTYPE  what elements are that NumPy has no name for
  column=NAME           the column of tokens in Parquet files
  budget=SIZE           bytes that decoded row groups of Parquet may take
  storage_option=K=V    how to reach object storage; secrets belong into the environment
  mix=NAME=WEIGHT       the share of one of several sources of tokens; once for each
  log=FILE              where the daemon writes its log
  allow_other           let other users read, too
  nonempty              mount over a folder that is not empty

Options of mount(8) and fstab(5), such as ro, noauto, nofail, _netdev, user, x-systemd.automount
and defaults, are taken, and change nothing here: a mount is always read-only, nosuid, nodev, noexec and
noatime. mount(8) says rw where nobody said ro, so that rw is no error.

Examples:
  mount -t batchfs /data/train /mnt/ds -o batch=256,seed=42,allow_other
  mount /mnt/ds               with this line in /etc/fstab:
    /data/train /mnt/ds batchfs batch=256,seed=42,memory=2GiB,allow_other,nofail 0 0
  umount /mnt/ds";

/// Whether this program was called as the helper.
pub fn is_called() -> bool {
    let name = std::env::args_os().next();
    name.as_deref()
        .and_then(|name| Path::new(name).file_name())
        .is_some_and(|name| NAMES.iter().any(|known| name == *known))
}

/// What its man page is made from.
pub fn command() -> clap::Command {
    Helper::command()
}

pub fn main() -> ExitCode {
    let helper = match Helper::try_parse() {
        Ok(helper) => helper,
        Err(e) => {
            let code = if e.use_stderr() { USAGE } else { 0 };
            let _ = e.print();
            return ExitCode::from(code);
        }
    };
    let meant = arguments(&helper).and_then(|args| Ok((parsed(&args)?, args)));
    let (mount, args) = match meant {
        Ok(meant) => meant,
        Err(why) => {
            say::note(why);
            return ExitCode::from(USAGE);
        }
    };
    match run(&helper, &args, &mount) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED),
        Err(e) => {
            say::note(told(&e));
            ExitCode::from(FAILED)
        }
    }
}

/// The arguments of `batchfs mount` that are meant.
fn arguments(helper: &Helper) -> Result<Vec<OsString>, String> {
    if helper.namespace.is_some() {
        return Err("mount -N: the daemon has to be in that namespace, too; say `nsenter -m` in front of mount".to_owned());
    }
    let options = Options::parse(&helper.options.join(","), helper.sloppy)?;
    if helper.verbose && !options.unused.is_empty() {
        daemon::tell(&format!("mount.batchfs: nothing to do for {}", options.unused.join(", ")));
    }
    let mut args: Vec<OsString> = options.arguments().into_iter().map(Into::into).collect();
    args.extend(["--".into(), helper.source.clone().into(), helper.dir.clone().into()]);
    Ok(args)
}

/// What these arguments say, so that what is wrong with them is told here and not by the daemon.
fn parsed(args: &[OsString]) -> Result<Mount, String> {
    let command = ["batchfs".into(), "mount".into()].into_iter().chain(args.iter().cloned());
    match Args::try_parse_from(command) {
        Ok(Args { command: Command::Mount(mount) }) => Ok(mount),
        Ok(_) => Err("these are no arguments of a mount".to_owned()),
        Err(e) => {
            // Its usage would be that of another program.
            let said = e.to_string();
            let line = said.lines().next().unwrap_or_default();
            Err(line.trim_start_matches("error: ").to_owned())
        }
    }
}

fn run(helper: &Helper, args: &[OsString], mount: &Mount) -> anyhow::Result<bool> {
    if helper.verbose {
        let shown = hidden::without(args);
        let shown: Vec<_> = shown.iter().map(|arg| arg.to_string_lossy()).collect();
        daemon::tell(&format!("mount.batchfs: batchfs mount {}", shown.join(" ")));
    }
    if helper.fake {
        commands::mount::prepare(mount)?;
        return Ok(true);
    }
    Ok(match daemon::start(args, &mount.tokens.sources.storage_option)? {
        Start::Answers(line) => {
            // mount(8) is quiet when all is well.
            if helper.verbose {
                daemon::tell(&format!("mount.batchfs: {line}"));
            }
            true
        }
        Start::Failed(_) => false,
    })
}
