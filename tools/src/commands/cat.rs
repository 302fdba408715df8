use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use super::unmounted;
use crate::args::Cat;
use crate::say;

pub fn run(args: &Cat) -> anyhow::Result<ExitCode> {
    let tree = unmounted(&args.source, &args.order)?;
    let terminal = !args.force && std::io::stdout().is_terminal();
    let mut out = say::out();
    for name in &args.names {
        let contents = tree.read(name)?;
        let bytes = contents.bytes().with_context(|| format!("{name}: cannot be mapped"))?;
        if terminal && !is_text(bytes) {
            bail!(
                "{name}: is not text, and standard output is a terminal; write it to a file with `> FILE`, look at its .txt, or say --force"
            );
        }
        out.write_all(bytes)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a terminal shows this as it is: UTF-8, and of control characters only those of lines.
fn is_text(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes)
        .is_ok_and(|text| !text.contains(|c: char| c.is_control() && !matches!(c, '\n' | '\t')))
}

#[cfg(test)]
mod tests {
    use super::is_text;

    #[test]
    fn what_a_terminal_takes() {
        for text in ["", "a line\n", "a\tb", "Größe ✓"] {
            assert!(is_text(text.as_bytes()), "{text:?}");
        }
        for not in [&b"\x93NUMPY"[..], b"\0", b"a\x1b[2J", b"\r", b"\xc2\x9b", b"\xff"] {
            assert!(!is_text(not), "{not:?}");
        }
    }
}
