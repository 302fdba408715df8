use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use batchfs_store::{OpenOptions as Open, train_dict};
use bytesize::ByteSize;

use crate::args::TrainDict;
use crate::parents::Parents;
use crate::say;

pub fn run(args: &TrainDict) -> anyhow::Result<ExitCode> {
    let dtype = args.types.of(&args.source);
    let stream = batchfs_source::open_path_as(&args.source, &Open::default(), dtype)?;
    let trained = train_dict(&*stream, usize::try_from(args.size.as_u64())?)?;
    let shown = args.output.display();
    let folder = match args.output.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parents = Parents::of(&args.output)
        .with_context(|| format!("{shown}: the folders that it is in cannot be made"))?;
    // Whole or not there: it gets its name when its bytes are on the disk.
    tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .and_then(|mut file| {
            file.write_all(&trained.bytes)?;
            file.as_file().sync_all()?;
            Ok(file.persist_noclobber(&args.output)?)
        })
        .with_context(|| format!("{shown}: cannot be made"))?;
    parents.keep();
    if let Some(warning) = trained.warning() {
        say::note(warning);
    }
    let (bytes, samples) = (ByteSize(trained.bytes.len() as u64), trained.samples);
    writeln!(say::out(), "{shown}: {bytes} from {samples} records")?;
    Ok(ExitCode::SUCCESS)
}
