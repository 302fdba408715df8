use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use batchfs_store::{OpenOptions as Open, train_dict};
use bytesize::ByteSize;

use crate::args::TrainDict;

pub fn run(args: &TrainDict) -> anyhow::Result<ExitCode> {
    let stream = batchfs_source::open_path(&args.source, &Open::default())?;
    let trained = train_dict(&*stream, usize::try_from(args.size.as_u64())?)?;
    let shown = args.output.display();
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&args.output)
        .with_context(|| format!("{shown}: cannot be made"))?;
    file.write_all(&trained.bytes).with_context(|| format!("{shown}: cannot be written"))?;
    println!("{shown}: {} from {} records", ByteSize(trained.bytes.len() as u64), trained.samples);
    if let Some(warning) = trained.warning() {
        eprintln!("batchfs: {warning}");
    }
    Ok(ExitCode::SUCCESS)
}
