//! Memory for the tokens of a row group.
//!
//! A row group is written once, read for some steps and given up: with memory of the C library half of
//! the time of decoding went into page faults. So it lies in huge pages, and comes back to be
//! filled again.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use memmap2::{Advice, MmapMut, MmapOptions};

const HUGE_PAGE: usize = 2 << 20;

/// What is left over of whole huge pages gets one, too, from this size on.
const WORTH_ONE: usize = HUGE_PAGE / 8 * 7;

/// Larger buffers are rare, and not kept.
const LARGEST: usize = 64 << 20;

/// Buffers that came back, for the row groups of one source.
#[derive(Debug)]
pub struct Spare {
    most: usize,
    idle: Mutex<Vec<MmapMut>>,
}

impl Spare {
    /// Keeps up to `most` buffers.
    pub fn new(most: usize) -> Arc<Spare> {
        Arc::new(Spare { most, idle: Mutex::default() })
    }

    /// No tokens, with room for so many.
    pub fn tokens(self: &Arc<Self>, count: usize) -> TokenVec {
        let bytes = count.saturating_mul(size_of::<i32>());
        let memory = match bytes {
            ..WORTH_ONE => Memory::Heap(Vec::with_capacity(count)),
            _ => self.take(bytes).map_or_else(Memory::heap, Memory::Mapped),
        };
        TokenVec { memory, len: 0, home: Arc::downgrade(self) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<MmapMut>> {
        // Whole at each point where something could panic.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, bytes: usize) -> Option<MmapMut> {
        let mut idle = self.lock();
        let fits = |map: &MmapMut| (bytes..=bytes.saturating_mul(2)).contains(&map.len());
        if let Some(at) = idle.iter().position(fits) {
            return Some(idle.swap_remove(at));
        }
        drop(idle);
        // The kernel aligns a mapping of whole huge pages to these; what is beyond is never touched.
        let map = MmapOptions::new().len(bytes.checked_next_multiple_of(HUGE_PAGE)?).map_anon();
        let map = map.ok()?;
        let huge = footprint(bytes) / HUGE_PAGE * HUGE_PAGE;
        // Without huge pages it is as good, and slower.
        let _ = map.advise_range(Advice::HugePage, 0, huge);
        Some(map)
    }
}

/// Bytes of memory that so many bytes of tokens take.
fn footprint(bytes: usize) -> usize {
    let rest = bytes % HUGE_PAGE;
    if rest < WORTH_ONE { bytes } else { bytes.saturating_add(HUGE_PAGE - rest) }
}

enum Memory {
    Heap(Vec<i32>),
    Mapped(MmapMut),
}

impl Memory {
    fn heap() -> Memory {
        Memory::Heap(Vec::new())
    }
}

/// The tokens of a row group. It grows at its end, and is read as a slice.
pub struct TokenVec {
    memory: Memory,
    /// Of mapped memory; that of the heap knows its own.
    len: usize,
    home: Weak<Spare>,
}

impl TokenVec {
    /// Bytes of memory that `tokens` take: 4 each, and what is missing to a huge page if it is little.
    pub fn bytes_of(tokens: u64) -> u64 {
        let bytes = usize::try_from(tokens.saturating_mul(4)).unwrap_or(usize::MAX);
        footprint(bytes) as u64
    }

    /// Adds tokens.
    pub fn extend_from_slice(&mut self, tokens: &[i32]) {
        if let Memory::Mapped(map) = &mut self.memory {
            let end = self.len + tokens.len();
            if let Some(out) = bytemuck::cast_slice_mut(map).get_mut(self.len..end) {
                out.copy_from_slice(tokens);
                self.len = end;
                return;
            }
            // There are more than there were said to be.
            self.memory = Memory::Heap(self.to_vec());
        }
        if let Memory::Heap(vec) = &mut self.memory {
            vec.extend_from_slice(tokens);
        }
    }

    /// Adds bytes as they are, and any that are missing to a whole token. It is `false`, and nothing is added, if
    /// there is no room for them.
    pub fn extend_from_bytes(&mut self, bytes: &[u8]) -> bool {
        let count = bytes.len().div_ceil(size_of::<i32>());
        match &mut self.memory {
            Memory::Mapped(map) => {
                let from = self.len * size_of::<i32>();
                if count > map.len() / size_of::<i32>() - self.len {
                    return false;
                }
                map[from..from + bytes.len()].copy_from_slice(bytes);
                self.len += count;
            }
            Memory::Heap(vec) => {
                let from = vec.len();
                if count > vec.capacity() - from {
                    return false;
                }
                vec.resize(from + count, 0);
                let out: &mut [u8] = bytemuck::cast_slice_mut(&mut vec[from..]);
                out[..bytes.len()].copy_from_slice(bytes);
            }
        }
        true
    }

    /// Removes all tokens.
    pub fn clear(&mut self) {
        match &mut self.memory {
            Memory::Heap(vec) => vec.clear(),
            Memory::Mapped(_) => self.len = 0,
        }
    }
}

impl Deref for TokenVec {
    type Target = [i32];

    fn deref(&self) -> &[i32] {
        match &self.memory {
            Memory::Heap(vec) => vec,
            Memory::Mapped(map) => &bytemuck::cast_slice(map)[..self.len],
        }
    }
}

impl Drop for TokenVec {
    fn drop(&mut self) {
        let Some(home) = self.home.upgrade() else { return };
        if let Memory::Mapped(map) = std::mem::replace(&mut self.memory, Memory::heap())
            && map.len() <= LARGEST
        {
            let mut idle = home.lock();
            if idle.len() < home.most {
                idle.push(map);
            }
        }
    }
}

impl Default for TokenVec {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl From<Vec<i32>> for TokenVec {
    fn from(tokens: Vec<i32>) -> Self {
        TokenVec { memory: Memory::Heap(tokens), len: 0, home: Weak::new() }
    }
}

impl PartialEq for TokenVec {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for TokenVec {}

impl fmt::Debug for TokenVec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize) -> Vec<i32> {
        (0..count as i32).collect()
    }

    #[test]
    fn tokens_are_those_that_were_added_in_whatever_memory() {
        let spare = Spare::new(1);
        for room in [0, 10, WORTH_ONE / 4, 3 * HUGE_PAGE / 4 + 17] {
            // As many as there is room for, fewer, and more.
            for count in [room, room / 2, room + 1, 3 * room + 5] {
                let want = numbers(count);
                let mut tokens = spare.tokens(room);
                want.chunks(1000).for_each(|some| tokens.extend_from_slice(some));
                assert!(*tokens == *want, "{count} of {room}");
                assert_eq!(tokens, TokenVec::from(want));
                tokens.clear();
                assert!(tokens.is_empty());
                tokens.extend_from_slice(&[7]);
                assert_eq!(*tokens, [7]);
            }
        }
    }

    #[test]
    fn bytes_are_added_while_there_is_room() {
        let spare = Spare::new(1);
        for room in [10, HUGE_PAGE / 4] {
            let mut memory = spare.tokens(room);
            let all = numbers(room);
            let bytes: &[u8] = bytemuck::cast_slice(&all);
            assert!(memory.extend_from_bytes(&bytes[..7]));
            assert_eq!(memory.len(), 2);
            assert!(memory.extend_from_bytes(&bytes[8..4 * room - 3]));
            assert_eq!(memory.len(), room);
            let added: &[u8] = bytemuck::cast_slice(&memory);
            assert!(added[..7] == bytes[..7] && added[8..4 * room - 3] == bytes[8..4 * room - 3]);
            let full = memory.extend_from_bytes(&vec![1; 4 * room]);
            assert!(!full && memory.len() == room);
        }
    }

    #[test]
    fn so_many_buffers_as_told_are_kept_and_each_has_one_owner() {
        let spare = Spare::new(2);
        let room = HUGE_PAGE / 4;
        let mut all: Vec<TokenVec> = (0..4).map(|_| spare.tokens(room)).collect();
        all.iter_mut().for_each(|tokens| tokens.extend_from_slice(&numbers(room)));
        drop(all);
        assert_eq!(spare.lock().len(), 2);
        let (mut a, mut b) = (spare.tokens(room), spare.tokens(room - 9));
        assert!(a.is_empty() && spare.lock().is_empty());
        a.extend_from_slice(&[1]);
        b.extend_from_slice(&[2]);
        assert_eq!((&*a, &*b), (&[1][..], &[2][..]));
        // Another one is not taken for what is much smaller.
        drop(a);
        let other = spare.tokens(room / 2);
        assert_eq!(spare.lock().len(), 1);
        drop(spare);
        drop((b, other));
    }
}
