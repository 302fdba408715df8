//! What a source of tokens is: documents in row groups.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use crate::token_vec::TokenVec;
use crate::{DType, Result};

/// Bytes that a document takes, with its places in the lanes.
const DOCUMENT: u64 = 48;

/// How much is in a row group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupCounts {
    /// Tokens of all its documents.
    pub tokens: u64,
    /// Documents, empty ones included.
    pub documents: u64,
}

impl GroupCounts {
    /// Bytes that the row group takes in memory at the most when it is decoded: 4 a token (if up to 256 KiB
    /// are missing to whole huge pages, these, too), and 48 a document, with its places in the lanes.
    pub fn decoded_bytes(self) -> u64 {
        TokenVec::bytes_of(self.tokens).saturating_add(self.documents.saturating_mul(DOCUMENT))
    }
}

/// A decoded row group.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TokenGroup {
    /// The documents' tokens, back to back. Of uint32 data these are the same bits.
    pub tokens: TokenVec,
    /// Tokens of each document.
    pub lengths: Vec<u32>,
}

impl TokenGroup {
    /// Bytes that it takes in memory: [`decoded_bytes`](GroupCounts::decoded_bytes), or with 2 a token if all
    /// of them are below 65,536.
    pub fn bytes(&self) -> u64 {
        self.tokens.bytes().saturating_add(self.lengths.len() as u64 * DOCUMENT)
    }
}

/// A row group whose documents are known, and whose tokens are decoded when they are asked for. It takes
/// no more memory than when it is decoded.
pub trait PackedGroup: Debug + Send + Sync {
    /// Tokens of each document.
    fn lengths(&self) -> &[u32];

    /// Writes the tokens from number `from` on to `out`, as little-endian bytes. It is `false` if they
    /// cannot be decoded: [`TokenSource::read`] says why.
    fn copy(&self, from: usize, out: &mut [u8]) -> bool;

    /// All of it, or `None` as for [`copy`](Self::copy).
    fn unpack(&self) -> Option<TokenGroup>;
}

/// A row group that somebody waits for.
#[derive(Debug)]
pub enum GroupRead {
    /// It is decoded.
    Whole(TokenGroup),
    /// Pieces of it are decoded when they are asked for.
    Packed(Arc<dyn PackedGroup>),
}

/// Where the bytes of a row group are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlace {
    /// The file's name within the dataset; in a mixture behind the source's and a slash.
    pub file: String,
    /// The row group's number in the file.
    pub group: u64,
    /// The bytes of the file that are read for it.
    pub bytes: Range<u64>,
}

/// A file of a token source, as a state of a run remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenFile {
    /// Its name within the dataset.
    pub name: String,
    /// Tells one version of it from another, wherever it lies.
    pub fingerprint: u128,
}

/// Documents of tokens, in row groups that are read as a whole.
///
/// Counts are known without reading. Whoever implements this promises that a row group never has
/// other tokens than it had when the source was opened: what changed or is damaged is an
/// [`Error`](crate::Error).
pub trait TokenSource: Send + Sync {
    /// Path or address, for people; without anything secret.
    fn origin(&self) -> &str;

    /// Type of a token: int32 or uint32.
    fn dtype(&self) -> DType;

    /// The row groups, in the order of the dataset.
    fn groups(&self) -> &[GroupCounts];

    /// Where a row group lies.
    fn place(&self, group: usize) -> GroupPlace;

    /// Reads and decodes a row group, on this thread.
    ///
    /// # Errors
    /// [`Error::RowGroup`](crate::Error::RowGroup) for what is damaged,
    /// [`Error::BadStore`](crate::Error::BadStore) with the file, and no row group, if that is another one than
    /// it was when the source was opened, [`Error::Io`](crate::Error::Io) for what cannot be read.
    fn read(&self, group: usize) -> Result<TokenGroup>;

    /// Reads a row group of which somebody waits for little. What comes packed was not looked at in full:
    /// damage in its values is found when they are decoded.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn read_packed(&self, group: usize) -> Result<GroupRead> {
        self.read(group).map(GroupRead::Whole)
    }

    /// Says that these row groups will be read soon, in this order. Replaces what was said before.
    fn announce(&self, groups: &[usize]) {
        let _ = groups;
    }

    /// Tells datasets apart: it depends on the files' names within the dataset and on what their
    /// footers say, not on where they lie or when they were written.
    fn fingerprint(&self) -> u128;

    /// The column that the tokens are in.
    fn column(&self) -> &str {
        ""
    }

    /// The files, in the order of the dataset.
    fn token_files(&self) -> Vec<TokenFile> {
        Vec::new()
    }

    /// The latest change of any file.
    fn modified(&self) -> SystemTime;

    /// Bytes received so far, for the index and for row groups.
    fn received_bytes(&self) -> u64;
}
