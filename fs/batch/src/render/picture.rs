//! Records as PNG files.

use batchfs_store::DType;
use png::{BitDepth, ColorType, Encoder};

use crate::Layout;

/// A record of uint8 that looks like a picture: `(H, W)`, `(H, W, C)` or `(C, H, W)` with one
/// (grey), three (RGB) or four (RGBA) channels. Where both of the latter fit, the channels are the
/// last axis.
pub(crate) struct Picture {
    width: u32,
    height: u32,
    channels: usize,
    /// Channel after channel, rather than pixel after pixel.
    planar: bool,
}

impl Picture {
    /// How the array of `layout` is seen as a picture.
    ///
    /// # Errors
    /// Why it is none.
    pub(crate) fn of(layout: &Layout) -> Result<Picture, String> {
        const RULE: &str = "a picture is uint8 of shape (H, W), (H, W, C) or (C, H, W), with C one of 1, 3 and 4, and not empty";
        let [array] = &layout.arrays[..] else { return Err(RULE.to_owned()) };
        let none = || format!("{} {:?} is no picture: {RULE}", array.dtype, array.shape);
        let channels = |c: u64| matches!(c, 1 | 3 | 4);
        let (height, width, channels, planar) = match array.shape[..] {
            [h, w] => (h, w, 1, false),
            [h, w, c] if channels(c) => (h, w, c, false),
            [c, h, w] if channels(c) => (h, w, c, true),
            _ => return Err(none()),
        };
        // The format's own limit.
        let side = |n: u64| i32::try_from(n).ok().filter(|n| *n > 0).map(i32::unsigned_abs);
        match (array.dtype, side(width), side(height)) {
            (DType::UInt8, Some(width), Some(height)) => {
                Ok(Picture { width, height, channels: channels as usize, planar })
            }
            _ => Err(none()),
        }
    }

    /// The file.
    ///
    /// # Errors
    /// What the encoder said.
    pub(crate) fn encode(&self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut file = Vec::new();
        let mut encoder = Encoder::new(&mut file, self.width, self.height);
        encoder.set_depth(BitDepth::Eight);
        encoder.set_color(match self.channels {
            1 => ColorType::Grayscale,
            3 => ColorType::Rgb,
            _ => ColorType::Rgba,
        });
        let mut writer = encoder.write_header().map_err(|e| e.to_string())?;
        if self.planar && self.channels > 1 {
            let plane = bytes.len() / self.channels;
            let mut pixels = vec![0; bytes.len()];
            for (channel, values) in bytes.chunks_exact(plane).enumerate() {
                let places = pixels.iter_mut().skip(channel).step_by(self.channels);
                places.zip(values).for_each(|(place, value)| *place = *value);
            }
            writer.write_image_data(&pixels)
        } else {
            writer.write_image_data(bytes)
        }
        .map_err(|e| e.to_string())?;
        writer.finish().map_err(|e| e.to_string())?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Face;
    use crate::layout::{Array, Fill};

    fn layout(dtype: DType, shape: &[u64]) -> Layout {
        let array = Array::new("data", dtype, shape.to_vec(), Fill::Records(0)).unwrap();
        Layout::frame(vec![array], Face::Bare, "").unwrap()
    }

    fn decode(file: &[u8]) -> (u32, u32, usize, Vec<u8>) {
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        (info.width, info.height, info.color_type.samples(), pixels)
    }

    #[test]
    fn each_shape_is_read_back() {
        let bytes: Vec<u8> = (0..24).collect();
        let cases: [(&[u64], [usize; 3]); 6] = [
            (&[4, 6], [6, 4, 1]),
            (&[4, 6, 1], [6, 4, 1]),
            (&[1, 4, 6], [6, 4, 1]),
            (&[2, 4, 3], [4, 2, 3]),
            (&[3, 2, 3], [2, 3, 3]),
            (&[2, 3, 4], [3, 2, 4]),
        ];
        for (shape, size) in cases {
            let n = shape.iter().product::<u64>() as usize;
            let file = Picture::of(&layout(DType::UInt8, shape)).unwrap().encode(&bytes[..n]);
            let (w, h, c, pixels) = decode(&file.unwrap());
            assert_eq!([w as usize, h as usize, c], size, "{shape:?}");
            assert_eq!(pixels, bytes[..n], "{shape:?}");
        }
        let file = Picture::of(&layout(DType::UInt8, &[3, 2, 2])).unwrap().encode(&bytes[..12]);
        let (w, h, c, pixels) = decode(&file.unwrap());
        assert_eq!((w, h, c), (2, 2, 3));
        assert_eq!(pixels, [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]);
    }

    #[test]
    fn what_is_no_picture_says_so() {
        let not: [(DType, &[u64]); 8] = [
            (DType::Int8, &[4, 4]),
            (DType::UInt8, &[]),
            (DType::UInt8, &[16]),
            (DType::UInt8, &[5, 4, 2]),
            (DType::UInt8, &[1, 3, 4, 4]),
            (DType::UInt8, &[0, 4]),
            (DType::UInt8, &[3, 4, 0]),
            (DType::UInt8, &[1 << 31, 1]),
        ];
        for (dtype, shape) in not {
            let why = Picture::of(&layout(dtype, shape)).err().unwrap();
            assert!(why.contains(dtype.name()) && why.contains("(H, W, C)"), "{why}");
        }
    }
}
