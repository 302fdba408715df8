//! `batchfs demo`: the main job, on real data that is embedded here: digits, and for records of
//! different lengths the guide.

mod draw;
mod read;
mod text;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, ensure};
use batchfs_sampler::{Sampler, Spec};
use batchfs_store::{DType, DatasetWriter, Schema, WriteOptions};

use crate::args::Demo;
use crate::say;

/// See data/README.md for origin and licence.
const IMAGES: &[u8] = include_bytes!("../../data/digits-images.npy");
const LABELS: &[u8] = include_bytes!("../../data/digits-labels.npy");
const RECORDS: usize = 1797;
const SIDE: usize = 8;
const PIXELS: usize = SIDE * SIDE;

const SPEC: &str = "batch=256,seed=42";

/// The records of one of the files above, behind its header.
fn records(npy: &'static [u8], bytes: usize) -> &'static [u8] {
    &npy[npy.len() - bytes..]
}

pub fn run(args: &Demo) -> anyhow::Result<ExitCode> {
    let folder = tempfile::Builder::new().prefix("batchfs-demo-").tempdir()?;
    let (store, mount) = (folder.path().join("digits"), folder.path().join("mnt"));
    let mut out = say::out();

    build(&store)?;
    writeln!(out, "1. Two aligned stores, {RECORDS} handwritten digits and their labels:\n")?;
    shell(&mut out, "info", &[store.as_os_str()])?;

    writeln!(out, "\n2. Mounted, so that every batch is a file:\n")?;
    std::fs::create_dir(&mount)?;
    let mounted = Mounted::new(&store, &mount, SPEC, &mut out)?;
    tree(&mut out, &mount)?;

    let spec: Spec = SPEC.parse()?;
    let sampler = Sampler::new(spec, RECORDS as u64)?;
    let checked = check(&mount, &sampler)?;
    writeln!(
        out,
        "\n3. {checked} batches read through the mount: every byte is that of the source.\n"
    )?;

    writeln!(
        out,
        "4. images/batch/0, its first three images, and their labels from labels/batch/0:\n"
    )?;
    let images = std::fs::read(mount.join("images/batch/0"))?;
    let labels = std::fs::read(mount.join("labels/batch/0"))?;
    draw::digits(&mut out, &images[..3 * PIXELS], &labels[..3])?;
    let picture = mount.join("images/record/17.png");
    let png = std::fs::read(&picture).with_context(|| picture.display().to_string())?;
    ensure!(png.starts_with(b"\x89PNG"), "{}: is no picture", picture.display());
    writeln!(
        out,
        "\n   images/record/17.png is one as a picture, images/record/17.txt as numbers."
    )?;

    let (store, beside) = (folder.path().join("text"), folder.path().join("text-mnt"));
    let count = text::build(&store)?;
    writeln!(
        out,
        "\n5. Records of different lengths: the {count} paragraphs of this program's guide:\n"
    )?;
    std::fs::create_dir(&beside)?;
    let mounted_text = Mounted::new(&store, &beside, text::SPEC, &mut out)?;
    text::show(&mut out, &beside)?;

    writeln!(
        out,
        "\n6. Seen here, with the small batches of digits ({} KiB):\n",
        256 * PIXELS / 1024
    )?;
    read::speed(&mut out, &mount, &sampler)?;

    if args.keep {
        mounted.keep();
        mounted_text.keep();
        let folder = folder.keep();
        writeln!(out, "\nLeft for you to look at: {} and {}", mount.display(), beside.display())?;
        writeln!(out, "  ls {0}/images/batch; cat {0}/images/batch/0.json", mount.display())?;
        writeln!(
            out,
            "  batchfs umount {} && batchfs umount {} && rm -r {}",
            mount.display(),
            beside.display(),
            folder.display()
        )?;
    } else {
        mounted_text.end()?;
        mounted.end()?;
        writeln!(out, "\nUnmounted, and nothing is left. Next:\n")?;
        writeln!(
            out,
            "  batchfs demo --keep                       the same, left mounted for you"
        )?;
        writeln!(out, "  batchfs create train --from images.npy    a store of your own data")?;
        writeln!(out, "  batchfs mount train /mnt/ds --spec batch=256,seed=42")?;
        writeln!(out, "  batchfs doctor                            what this machine can do")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn build(dest: &Path) -> anyhow::Result<()> {
    let mut dataset = DatasetWriter::create(dest)?;
    let images = Schema::dense(DType::UInt8, [SIDE as u64, SIDE as u64]);
    let mut writer = dataset.stream("images", images, WriteOptions::default())?;
    writer.append(records(IMAGES, RECORDS * PIXELS))?;
    writer.finish()?;
    let labels = Schema::dense(DType::UInt8, []);
    let mut writer = dataset.stream("labels", labels, WriteOptions::default())?;
    writer.append(records(LABELS, RECORDS))?;
    writer.finish()?;
    dataset.publish()?;
    Ok(())
}

/// This program, as a command of its own.
fn batchfs() -> anyhow::Result<Command> {
    Ok(Command::new(std::env::current_exe().context("cannot find this program's file")?))
}

/// Shows a command, runs it, and shows what it says.
fn shell(
    out: &mut impl std::io::Write,
    command: &str,
    args: &[&std::ffi::OsStr],
) -> anyhow::Result<()> {
    let shown: Vec<_> = args.iter().map(|a| a.to_string_lossy()).collect();
    writeln!(out, "   $ batchfs {command} {}", shown.join(" "))?;
    let done = batchfs()?.arg(command).args(args).output()?;
    let _ = std::io::stderr().write_all(&done.stderr);
    for line in String::from_utf8_lossy(&done.stdout).lines() {
        writeln!(out, "   {line}")?;
    }
    ensure!(
        done.status.success(),
        "`batchfs {command}` failed; `batchfs doctor` says what is missing"
    );
    Ok(())
}

/// A mount by a daemon of its own: a process must not read a mount that it serves itself.
struct Mounted(Option<PathBuf>);

impl Mounted {
    fn new(
        store: &Path,
        dir: &Path,
        spec: &str,
        out: &mut impl std::io::Write,
    ) -> anyhow::Result<Mounted> {
        let args = [store.as_os_str(), dir.as_os_str(), "--spec".as_ref(), spec.as_ref()];
        shell(out, "mount", &args)?;
        Ok(Mounted(Some(dir.to_owned())))
    }

    fn keep(mut self) {
        self.0 = None;
    }

    fn end(mut self) -> anyhow::Result<()> {
        let dir = self.0.take().unwrap_or_default();
        let done = batchfs()?.arg("umount").arg(&dir).status()?;
        ensure!(done.success(), "{}: could not be unmounted", dir.display());
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Reached when something failed on the way: leave no mount behind.
        if let (Some(dir), Ok(mut command)) = (self.0.take(), batchfs()) {
            let _ = command.args(["umount", "--lazy"]).arg(dir).status();
        }
    }
}

/// The upper part of the mount's tree, as it is found there.
fn tree(out: &mut impl std::io::Write, mount: &Path) -> anyhow::Result<()> {
    writeln!(out, "\n   {}/", mount.display())?;
    let folders = ["", "images", "images/batch", "images/record", "labels", "index"];
    for folder in folders {
        let depth = if folder.is_empty() { 0 } else { 1 + folder.matches('/').count() };
        if !folder.is_empty() {
            let name = folder.rsplit('/').next().unwrap_or(folder);
            writeln!(out, "   {:indent$}{name}/", "", indent = 2 * depth)?;
        }
        let mut names = Vec::new();
        for entry in std::fs::read_dir(mount.join(folder))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        let shown = names.len().min(4);
        let rest = if names.len() > shown {
            format!(" … {} in all", names.len())
        } else {
            String::new()
        };
        if shown > 0 {
            writeln!(
                out,
                "   {:indent$}{}{rest}",
                "",
                names[..shown].join(" "),
                indent = 2 * depth + 2
            )?;
        }
    }
    Ok(())
}

/// Compares all batches of a cycle, and index and labels with them, with the embedded data.
fn check(mount: &Path, sampler: &Sampler) -> anyhow::Result<u64> {
    let (images, labels) = (records(IMAGES, RECORDS * PIXELS), records(LABELS, RECORDS));
    let mut ids = vec![0; sampler.local_batch() as usize];
    for step in 0..sampler.steps_per_cycle() {
        sampler.ids(step, &mut ids);
        let pick = |from: &[u8], item: usize| -> Vec<u8> {
            ids.iter().flat_map(|id| &from[*id as usize * item..][..item]).copied().collect()
        };
        let same = |name: &str, expected: &[u8]| -> anyhow::Result<()> {
            let path = mount.join(format!("{name}/{step}"));
            let found = std::fs::read(&path).with_context(|| path.display().to_string())?;
            ensure!(found == expected, "{}: not the bytes of the source", path.display());
            Ok(())
        };
        same("images/batch", &pick(images, PIXELS))?;
        same("labels/batch", &pick(labels, 1))?;
        let index: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        same("index", &index)?;
    }
    Ok(2 * sampler.steps_per_cycle())
}
