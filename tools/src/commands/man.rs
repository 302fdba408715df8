use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Command, CommandFactory as _};
use clap_mangen::Man as Page;

use crate::args::{Args, Man};
use crate::helper;
use crate::say;

/// The section of commands, and that of commands for the one who looks after the system.
const COMMANDS: &str = "1";
const SYSTEM: &str = "8";

pub fn run(args: &Man) -> anyhow::Result<ExitCode> {
    let mut command = Args::command();
    // Gives subcommands their full names.
    command.build();
    let mut out = say::out();
    let Some(dir) = &args.dir else {
        out.write_all(&page(&command, COMMANDS)?)?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    };
    fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    let mut count = 1;
    write(dir, &command, COMMANDS)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        if sub.get_name() != "help" {
            write(dir, &sub.clone().version(env!("CARGO_PKG_VERSION")), COMMANDS)?;
            count += 1;
        }
    }
    write(dir, &helper::command(), SYSTEM)?;
    writeln!(out, "{}: {} man pages", dir.display(), count + 1)?;
    Ok(ExitCode::SUCCESS)
}

fn write(dir: &Path, command: &Command, section: &str) -> anyhow::Result<()> {
    // With a hyphen in it: batchfs-create.
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let path = dir.join(format!("{name}.{section}"));
    fs::write(&path, page(command, section)?)
        .with_context(|| format!("{}: cannot be written", path.display()))
}

/// A page of a command. What follows the help of its options keeps its lines, which are examples and
/// tables.
fn page(command: &Command, section: &str) -> io::Result<Vec<u8>> {
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let source = format!("batchfs {}", env!("CARGO_PKG_VERSION"));
    let page = Page::new(command.clone()).section(section).manual("batchfs").source(source);
    let mut out = Vec::new();
    page.render_title(&mut out)?;
    page.render_name_section(&mut out)?;
    page.render_synopsis_section(&mut out)?;
    page.render_description_section(&mut out)?;
    page.render_options_section(&mut out)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut out)?;
    }
    let (notes, examples) = match after.find("Examples:\n") {
        Some(at) => (&after[..at], &after[at + "Examples:\n".len()..]),
        None => (after.as_str(), ""),
    };
    for (title, text) in [("NOTES", notes), ("EXAMPLES", examples)] {
        if !text.trim().is_empty() {
            writeln!(out, ".SH {title}\n.nf")?;
            for line in text.trim_end().lines() {
                writeln!(out, "{}", escaped(line))?;
            }
            writeln!(out, ".fi")?;
        }
    }
    Ok(out)
}

/// A line as roff takes it literally.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if line.starts_with('.') { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_literally() {
        assert_eq!(escaped(".npy - 'x' \\n"), "\\&.npy \\- \\(aqx\\(aq \\en");
        let command = Command::new("x").after_help("Keys:\n  a  b\n\nExamples:\n  x --y\n");
        let text = String::from_utf8(page(&command, "1").unwrap()).unwrap();
        assert!(
            text.ends_with(
                ".SH NOTES\n.nf\nKeys:\n  a  b\n.fi\n.SH EXAMPLES\n.nf\n  x \\-\\-y\n.fi\n"
            ),
            "{text}"
        );
    }
}
