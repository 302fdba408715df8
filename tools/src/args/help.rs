//! Commands about this program and this machine.

use std::path::PathBuf;

use clap::Args as ClapArgs;

/// Say what this machine can do for batchfs, and what to do about the rest.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs doctor
  batchfs doctor --json")]
pub struct Doctor {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Build, mount and read two small real datasets: handwritten digits and their labels, and a text.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs demo
  batchfs demo --keep      leave the data and the mounts for you to look at")]
pub struct Demo {
    /// Leave the datasets and the mounts in place, and say where
    #[arg(long)]
    pub keep: bool,
}

/// Print what a shell needs to complete the arguments of this program.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs completions bash > batchfs.bash     then, in bash: source ./batchfs.bash
  batchfs completions zsh > _batchfs          in a folder of zsh's $fpath
  batchfs completions fish > batchfs.fish     in ~/.config/fish/completions

Where all users find them:
  bash  /usr/share/bash-completion/completions/batchfs
  zsh   /usr/local/share/zsh/site-functions/_batchfs
  fish  /usr/share/fish/vendor_completions.d/batchfs.fish")]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Print the man page, or write those of all commands to a folder.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs man > batchfs.1                     then: man -l batchfs.1
  batchfs man --dir man                       batchfs.1, batchfs-create.1, … mount.batchfs.8")]
pub struct Man {
    /// The folder to write to; is made if it is not there
    #[arg(long, value_name = "D")]
    pub dir: Option<PathBuf>,
}
