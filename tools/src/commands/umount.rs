use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::args::Umount;

/// How long to wait for the daemon to end, which it does as soon as the kernel lets go.
const PATIENCE: Duration = Duration::from_secs(5);

pub fn run(args: &Umount) -> anyhow::Result<ExitCode> {
    let dir = match batchfs_mount::resolve(&args.dir) {
        Ok(dir) => dir,
        Err(e) => bail!("{}: cannot be found: {e}", args.dir.display()),
    };
    if batchfs_mount::clear_dead(&dir)? > 0 && !batchfs_mount::is_ours(&dir) {
        return Ok(ExitCode::SUCCESS);
    }
    let daemon = daemon_of(&dir);
    batchfs_mount::unmount(&dir, args.lazy)?;
    if let Some(pid) = daemon
        && !args.lazy
    {
        let since = Instant::now();
        while is_running(pid) && since.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the process is there and more than a zombie, which its parent may never look after.
fn is_running(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which is in parentheses and may hold anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn daemon_of(dir: &std::path::Path) -> Option<u64> {
    let config = std::fs::read(dir.join(".batchfs/config.json")).ok()?;
    serde_json::from_slice::<serde_json::Value>(&config).ok()?["pid"].as_u64()
}
