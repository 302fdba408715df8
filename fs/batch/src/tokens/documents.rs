use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use batchfs_store::{Error, Result, Schema, Stream};

use super::groups::Pinned;
use super::sources::Tokens;

/// The documents of a token source as records. Their lengths are known only when they are read.
pub(crate) struct Documents {
    tokens: Arc<Tokens>,
    schema: Schema,
    origin: PathBuf,
}

impl Documents {
    pub(crate) fn new(tokens: Arc<Tokens>) -> Documents {
        let schema = Schema::ragged(tokens.source().dtype(), 1);
        let origin = tokens.source().origin().into();
        Documents { tokens, schema, origin }
    }

    /// Calls `with` for each document with its row group, the tokens before it there, and its length.
    fn each(
        &self,
        ids: &[u64],
        mut with: impl FnMut(&Pinned, usize, usize, u32) -> Result<bool>,
    ) -> Result<()> {
        let len = self.len();
        for &record in ids {
            if record >= len {
                return Err(Error::NoSuchRecord { path: self.origin.clone(), record, len });
            }
            let (group, place) = self.tokens.find(record);
            let pinned = self.tokens.groups().pin(&[group], &[], true)?;
            let found = pinned.lengths(group).and_then(|lengths| {
                let from = lengths.get(..place)?.iter().map(|&n| n as usize).sum::<usize>();
                Some((from, *lengths.get(place)?))
            });
            let found = found.map_or(Ok(false), |(from, len)| with(&pinned, group, from, len))?;
            if !found {
                let why = "a row group is shorter than its index says; mount again".to_owned();
                return Err(Error::BadStore { path: self.origin.clone(), why });
            }
        }
        Ok(())
    }
}

impl Stream for Documents {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.tokens.documents()
    }

    fn payload_bytes(&self) -> u64 {
        self.tokens.source().groups().iter().map(|group| group.tokens * 4).sum()
    }

    fn gather(&self, ids: &[u64], mut out: &mut [u8]) -> Result<()> {
        self.each(ids, |pinned, group, from, len| {
            let Some((now, later)) =
                std::mem::take(&mut out).split_at_mut_checked(4 * len as usize)
            else {
                let why = "the documents do not fit into the buffer".to_owned();
                return Err(Error::Invalid { path: self.origin.clone(), why });
            };
            out = later;
            pinned.copy(group, from, now)
        })
    }

    fn elements(&self, ids: &[u64], out: &mut [u64]) -> Result<()> {
        let mut at = out.iter_mut();
        self.each(ids, |_, _, _, len| {
            if let Some(place) = at.next() {
                *place = len.into();
            }
            Ok(true)
        })
    }

    fn shapes(&self, ids: &[u64], out: &mut [u64]) -> Result<()> {
        self.elements(ids, out)
    }

    fn origin(&self) -> &Path {
        &self.origin
    }

    fn modified(&self) -> SystemTime {
        self.tokens.source().modified()
    }
}
