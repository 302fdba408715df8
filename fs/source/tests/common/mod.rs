//! What the tests of sources share: records, and files of every kind made from them.
#![allow(clippy::unwrap_used, dead_code)]

use std::fs;
use std::path::{Path, PathBuf};

use batchfs_store::{Codec, DType, Layout, Schema, Store, StoreWriter, Stream, WriteOptions, npy};

pub const CODECS: [Codec; 3] = [Codec::Raw, Codec::Zstd, Codec::ZstdDict];

/// Records, and the shape of each.
#[derive(Clone)]
pub struct Data {
    pub schema: Schema,
    pub records: Vec<Vec<u8>>,
    pub shapes: Vec<Vec<u64>>,
}

/// Bytes of little variety, so that some of it can be compressed.
pub fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * i + seed * 31 + i / 7) % 23) as u8).collect()
}

impl Data {
    pub fn dense(dtype: DType, item_shape: &[u64], records: usize) -> Self {
        let schema = Schema::dense(dtype, item_shape);
        let item = schema.item_bytes().unwrap() as usize;
        Self {
            schema,
            records: (0..records).map(|i| bytes(item, i)).collect(),
            shapes: vec![item_shape.to_vec(); records],
        }
    }

    /// Records that differ in shape, none of them empty.
    pub fn ragged(dtype: DType, ndim: u32, records: usize) -> Self {
        let axis = |i: usize, a: u32| 1 + (i * (3 + a as usize) + a as usize) as u64 % 7;
        let shape = |i| (0..ndim).map(|a| axis(i, a)).collect();
        let mut data = Self::ragged_of(dtype, &shape, records);
        data.schema = Schema::ragged(dtype, ndim);
        data
    }

    /// Records of the shapes that `shape` gives.
    pub fn ragged_of(dtype: DType, shape: &dyn Fn(usize) -> Vec<u64>, records: usize) -> Self {
        let ndim = shape(0).len() as u32;
        let shapes: Vec<Vec<u64>> = (0..records).map(shape).collect();
        let len = |shape: &Vec<u64>| shape.iter().product::<u64>() as usize * dtype.size();
        let records = shapes.iter().enumerate().map(|(i, shape)| bytes(len(shape), i)).collect();
        Self { schema: Schema::ragged(dtype, ndim), records, shapes }
    }

    /// What is in tests/golden.
    pub fn golden(kind: &str) -> Self {
        if kind == "dense" {
            let values = (0..66).flat_map(|n| (((n * 37) % 101 - 50) as i16).to_le_bytes());
            let values: Vec<u8> = values.collect();
            let records = values.chunks(12).map(<[u8]>::to_vec).collect();
            let schema = Schema::dense(DType::Int16, [2, 3]);
            return Self { schema, records, shapes: vec![vec![2, 3]; 11] };
        }
        let shapes: Vec<Vec<u64>> = (0..9).map(|r| vec![1 + r % 3, 1 + (r * 5) % 7]).collect();
        let mut values = (0..).map(|n| (n * 3 % 17) as f32);
        let records = shapes
            .iter()
            .map(|s| {
                let record = values.by_ref().take((s[0] * s[1]) as usize);
                record.flat_map(f32::to_le_bytes).collect()
            })
            .collect();
        Self { schema: Schema::ragged(DType::Float32, 2), records, shapes }
    }

    pub fn len(&self) -> u64 {
        self.records.len() as u64
    }

    pub fn of(&self, ids: &[u64]) -> Vec<u8> {
        ids.iter().flat_map(|id| self.records[*id as usize].clone()).collect()
    }

    pub fn values(&self) -> Vec<u8> {
        self.records.concat()
    }

    fn flat_shapes(&self) -> Vec<u64> {
        self.shapes.concat()
    }

    /// A dictionary for these records; the same one every time.
    pub fn dictionary(&self) -> Vec<u8> {
        let samples: Vec<Vec<u8>> = (0..600).map(|i| bytes(64, i)).collect();
        zstd::dict::from_samples(&samples, 1 << 10).unwrap()
    }

    pub fn write_store(&self, dest: &Path, codec: Codec, shards: u32) {
        let dictionary = (codec == Codec::ZstdDict).then(|| self.dictionary());
        let options = WriteOptions { codec, shards, dictionary, ..WriteOptions::default() };
        let mut writer = StoreWriter::create(dest, self.schema.clone(), options).unwrap();
        match self.schema.layout {
            Layout::Dense { .. } => writer.append(&self.values()).unwrap(),
            Layout::Ragged { .. } => {
                writer.append_ragged(&self.values(), &self.flat_shapes()).unwrap();
            }
        }
        writer.finish().unwrap();
    }

    pub fn write_npy(&self, file: &Path) {
        let Layout::Dense { item_shape } = &self.schema.layout else { panic!("ragged") };
        let shape = [&[self.len()], item_shape.as_slice()].concat();
        let header = npy::header(self.schema.dtype, &shape, 64).unwrap();
        fs::write(file, [header, self.values()].concat()).unwrap();
    }

    pub fn write_ragged_npy(&self, folder: &Path) {
        fs::create_dir(folder).unwrap();
        let (n, ndim) = (self.len(), self.schema.ndim() as u64);
        let counts: Vec<u64> = self.shapes.iter().map(|s| s.iter().product()).collect();
        let mut ends = vec![0];
        counts.iter().for_each(|c| ends.push(ends[ends.len() - 1] + c));
        let save = |name: &str, dtype, shape: &[u64], bytes: Vec<u8>| {
            let header = npy::header(dtype, shape, 64).unwrap();
            fs::write(folder.join(name), [header, bytes].concat()).unwrap();
        };
        let values: u64 = counts.iter().sum();
        save("values.npy", self.schema.dtype, &[values], self.values());
        save("cu_seqlens.npy", DType::Int64, &[n + 1], le(&ends));
        save("shapes.npy", DType::UInt64, &[n, ndim], le(&self.flat_shapes()));
    }

    pub fn write_zrecord(&self, folder: &Path, codec: Codec, shards: usize) {
        let dictionary = (codec == Codec::ZstdDict).then(|| self.dictionary());
        self.write_zrecord_with(folder, codec, shards, 4, dictionary.as_deref());
    }

    /// `width` is the bytes of an axis: 4, or 8 as loaderx 2.8.18 has it.
    pub fn write_zrecord_with(
        &self,
        folder: &Path,
        codec: Codec,
        shards: usize,
        width: usize,
        dictionary: Option<&[u8]>,
    ) {
        let dtype = self.schema.dtype;
        let (schema, head) = match &self.schema.layout {
            Layout::Dense { item_shape } => {
                (format!(r#"{{"dtype": "{dtype}", "item_shape": {item_shape:?}}}"#), false)
            }
            Layout::Ragged { ndim } => (format!(r#"{{"dtype": "{dtype}", "ndim": {ndim}}}"#), true),
        };
        let payloads: Vec<Vec<u8>> = (self.records.iter().zip(&self.shapes))
            .map(|(record, shape)| {
                let axes = shape.iter().filter(|_| head);
                let axes = axes.flat_map(|n| n.to_le_bytes()[..width].to_vec());
                axes.chain(record.iter().copied()).collect()
            })
            .collect();
        container(folder, &schema, codec, shards, &payloads, dictionary);
    }
}

/// Writes a container as loaderx does.
pub fn container(
    folder: &Path,
    schema: &str,
    codec: Codec,
    shards: usize,
    payloads: &[Vec<u8>],
    dictionary: Option<&[u8]>,
) {
    fs::create_dir(folder).unwrap();
    let mut data = vec![Vec::new(); shards];
    let mut index = Vec::new();
    let prepared = zstd::dict::EncoderDictionary::copy(dictionary.unwrap_or(&[]), 3);
    let mut zstd = match dictionary {
        Some(_) => zstd::bulk::Compressor::with_prepared_dictionary(&prepared).unwrap(),
        None => zstd::bulk::Compressor::new(3).unwrap(),
    };
    for (id, raw) in payloads.iter().enumerate() {
        let stored = if codec == Codec::Raw { raw.clone() } else { zstd.compress(raw).unwrap() };
        index.extend((data[id % shards].len() as u64).to_le_bytes());
        index.extend((stored.len() as u32).to_le_bytes());
        index.extend((raw.len() as u32).to_le_bytes());
        data[id % shards].extend(stored);
    }
    let mut meta = (payloads.len() as u64).to_le_bytes().to_vec();
    meta.extend((schema.len() as u16).to_le_bytes());
    meta.extend([shards as u8, codec as u8, 0, 0, 0, 0]);
    data.iter().for_each(|bytes| meta.extend((bytes.len() as u64).to_le_bytes()));
    meta.resize(0x808, 0);
    meta.extend(schema.bytes());
    meta.resize(0x1000, 0);
    fs::write(folder.join("meta.zr"), [meta, index].concat()).unwrap();
    for (k, bytes) in data.iter().enumerate() {
        fs::write(folder.join(format!("data_{k}.zr")), bytes).unwrap();
    }
    if let Some(bytes) = dictionary {
        fs::write(folder.join("dict.zr"), bytes).unwrap();
    }
}

fn le(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The files of a folder, by name.
pub fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap()))
        .collect();
    found.sort();
    found
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    files(from).iter().for_each(|(name, bytes)| fs::write(to.join(name), bytes).unwrap());
}

/// All records of a stream, and their shapes.
pub fn all(stream: &dyn Stream) -> batchfs_store::Result<(Vec<u8>, Vec<u64>)> {
    let ids: Vec<u64> = (0..stream.len()).collect();
    let mut elements = vec![0; ids.len()];
    stream.elements(&ids, &mut elements)?;
    let size = stream.schema().dtype.size() as u64;
    let mut out = vec![0; (elements.iter().sum::<u64>() * size) as usize];
    stream.gather(&ids, &mut out)?;
    let mut shapes = vec![0; ids.len() * stream.schema().ndim()];
    stream.shapes(&ids, &mut shapes)?;
    Ok((out, shapes))
}

pub fn open_store(path: &Path) -> Store {
    Store::open(path, batchfs_store::OpenOptions::default()).unwrap()
}

/// A `.npy` file of dense records in Fortran order, big-endian, or both.
pub fn write_other_order(file: &Path, data: &Data, fortran: bool, big: bool) {
    let Layout::Dense { item_shape } = &data.schema.layout else { panic!("ragged") };
    let shape = [&[data.len()], item_shape.as_slice()].concat();
    let size = data.schema.dtype.size();
    let mut values = data.values();
    if fortran {
        let (c, mut at) = (values.clone(), vec![0; shape.len()]);
        for value in values.chunks_mut(size) {
            // The place in C order of the axes `at`; the first of these moves fastest.
            let index = at.iter().zip(&shape).fold(0, |n, (i, len)| n * len + i) as usize;
            value.copy_from_slice(&c[index * size..][..size]);
            for (i, len) in at.iter_mut().zip(&shape) {
                *i = (*i + 1) % len;
                if *i > 0 {
                    break;
                }
            }
        }
    }
    let descr = data.schema.dtype.npy_descr().unwrap();
    let unit = if descr.contains('c') { size / 2 } else { size };
    if big {
        values.chunks_mut(unit).for_each(<[u8]>::reverse);
    }
    let order = if fortran { "True" } else { "False" };
    let descr = if big { descr.replace('<', ">") } else { descr.to_owned() };
    let shape: Vec<String> = shape.iter().map(|n| format!("{n},")).collect();
    let dict = format!(
        "{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({}), }}\n",
        shape.concat()
    );
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((dict.len() as u16).to_le_bytes());
    fs::write(file, [bytes, dict.into_bytes(), values].concat()).unwrap();
}
