//! Several token sources as one: the row groups and documents of each behind those of the one
//! before.

use std::sync::Arc;
use std::time::SystemTime;

use batchfs_sampler::lanes::Mix;
use batchfs_store::{
    DType, GroupCounts, GroupPlace, GroupRead, Result, TokenFile, TokenGroup, TokenSource,
};
use sha2::{Digest as _, Sha256};

pub(super) struct Joined {
    origin: String,
    names: Vec<String>,
    /// The column that is the same in all, or each source's with its name.
    column: String,
    /// Each with its first row group, in the order of the mix.
    sources: Vec<(usize, Arc<dyn TokenSource>)>,
    counts: Vec<GroupCounts>,
    fingerprint: u128,
}

impl Joined {
    /// Joins sources that are in the order of `mix`, and have its names.
    pub(super) fn new(mix: &Mix, sources: Vec<Arc<dyn TokenSource>>) -> Joined {
        let mut counts = Vec::new();
        let mut print = Sha256::new();
        print.update(mix.to_string());
        let mut origin = Vec::new();
        let mut columns: Vec<String> = Vec::new();
        let sources = mix.names().zip(sources).map(|(name, source)| {
            let first = counts.len();
            counts.extend_from_slice(source.groups());
            print.update(source.fingerprint().to_le_bytes());
            origin.push(format!("{name}={}", source.origin()));
            columns.push(source.column().to_owned());
            (first, source)
        });
        let sources = sources.collect();
        let mut fingerprint = [0; 16];
        fingerprint.copy_from_slice(&print.finalize()[..16]);
        let fingerprint = u128::from_le_bytes(fingerprint);
        let names: Vec<String> = mix.names().map(str::to_owned).collect();
        let column = match columns.iter().all(|column| *column == columns[0]) {
            true => columns.swap_remove(0),
            false => columns.join(","),
        };
        Joined { origin: origin.join(","), names, column, sources, counts, fingerprint }
    }

    /// The first row group of each source.
    pub(super) fn firsts(&self) -> Vec<usize> {
        self.sources.iter().map(|&(first, _)| first).collect()
    }

    /// Which source has a row group.
    fn at(&self, group: usize) -> usize {
        self.sources.partition_point(|&(first, _)| first <= group) - 1
    }

    /// The source of a row group, and the row group's number there.
    fn find(&self, group: usize) -> (&dyn TokenSource, usize) {
        let (first, source) = &self.sources[self.at(group)];
        (&**source, group - first)
    }
}

impl TokenSource for Joined {
    fn origin(&self) -> &str {
        &self.origin
    }

    fn dtype(&self) -> DType {
        let unsigned = self.sources.iter().any(|(_, source)| source.dtype() == DType::UInt32);
        if unsigned { DType::UInt32 } else { DType::Int32 }
    }

    fn groups(&self) -> &[GroupCounts] {
        &self.counts
    }

    fn place(&self, group: usize) -> GroupPlace {
        let (source, own) = self.find(group);
        let place = source.place(own);
        GroupPlace { file: format!("{}/{}", self.names[self.at(group)], place.file), ..place }
    }

    fn read(&self, group: usize) -> Result<TokenGroup> {
        let (source, group) = self.find(group);
        source.read(group)
    }

    fn read_packed(&self, group: usize) -> Result<GroupRead> {
        let (source, group) = self.find(group);
        source.read_packed(group)
    }

    fn announce(&self, groups: &[usize]) {
        for (at, (first, source)) in self.sources.iter().enumerate() {
            let end = self.sources.get(at + 1).map_or(self.counts.len(), |&(first, _)| first);
            let own: Vec<usize> = groups
                .iter()
                .filter(|&group| (*first..end).contains(group))
                .map(|group| group - first)
                .collect();
            source.announce(&own);
        }
    }

    fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    fn column(&self) -> &str {
        &self.column
    }

    fn token_files(&self) -> Vec<TokenFile> {
        let named = |(name, (_, source)): (&String, &(usize, Arc<dyn TokenSource>))| {
            let own = source.token_files().into_iter();
            own.map(|file| TokenFile { name: format!("{name}/{}", file.name), ..file })
                .collect::<Vec<_>>()
        };
        self.names.iter().zip(&self.sources).flat_map(named).collect()
    }

    fn modified(&self) -> SystemTime {
        let latest = self.sources.iter().map(|(_, source)| source.modified()).max();
        latest.unwrap_or(SystemTime::UNIX_EPOCH)
    }

    fn received_bytes(&self) -> u64 {
        self.sources.iter().map(|(_, source)| source.received_bytes()).sum()
    }
}
