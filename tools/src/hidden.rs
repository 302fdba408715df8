//! How options of object storage reach another process: by its standard input. A command line is seen by
//! everybody on the machine for as long as a mount lasts, and what is secret among them need not have a
//! name that says so.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::process::Stdio;

use anyhow::Context as _;
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Says that options come by standard input, as a JSON list of pairs.
pub const FLAG: &str = "--storage-stdin";
const OPTION: &str = "--storage-option";

/// Names and values.
pub type StorageOptions = Vec<(String, String)>;

/// These arguments of `batchfs mount` without options of object storage.
pub fn without(args: &[OsString]) -> Vec<OsString> {
    let mut left = Vec::with_capacity(args.len());
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let text = arg.as_encoded_bytes();
        if text == b"--" {
            left.push(arg.clone());
            break;
        }
        if text == OPTION.as_bytes() {
            // No value of another option begins with a dash.
            rest.next();
            continue;
        }
        let joined =
            text.strip_prefix(OPTION.as_bytes()).is_some_and(|rest| rest.starts_with(b"="));
        if !joined && text != FLAG.as_bytes() {
            left.push(arg.clone());
        }
    }
    left.extend(rest.cloned());
    left
}

/// The standard input of a process that is to have these options.
pub fn stdin(options: &StorageOptions) -> anyhow::Result<Stdio> {
    let write = || {
        let mut file = File::from(memfd_create(c"storage", MFdFlags::MFD_CLOEXEC)?);
        file.write_all(serde_json::json!(options).to_string().as_bytes())?;
        file.rewind()?;
        std::io::Result::Ok(file)
    };
    Ok(write().context("cannot hand on the storage options")?.into())
}

/// What [`stdin`] or another caller has given to this process. Standard input is empty from then on.
pub fn read() -> anyhow::Result<StorageOptions> {
    let mut text = String::new();
    let read = std::io::stdin().lock().read_to_string(&mut text);
    read.context("standard input: cannot read the storage options")?;
    let null = File::open("/dev/null").context("/dev/null: cannot be opened")?;
    nix::unistd::dup2_stdin(&null).context("cannot let go of standard input")?;
    // Not what the parser says: it would show a part of the text.
    let options: StorageOptions = serde_json::from_str(&text)
        .map_err(|_| anyhow::anyhow!("standard input: these are no storage options"))?;
    Ok(options.into_iter().map(|(key, value)| (key.to_lowercase(), value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_storage_are_taken_out_and_nothing_else() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (given, left) in [
            ("a b", "a b"),
            ("--storage-option k=secret a b", "a b"),
            ("a --storage-option=k=secret b --storage-option k=--x", "a b"),
            (
                "--storage-optional=x a --log=--storage-option=k",
                "--storage-optional=x a --log=--storage-option=k",
            ),
            ("--storage-stdin -- --storage-option x=y", "-- --storage-option x=y"),
            ("a --storage-option", "a"),
        ] {
            assert_eq!(without(&words(given)), words(left), "{given}");
        }
    }
}
