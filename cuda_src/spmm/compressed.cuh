// Storage of compressed rows (spmm/compressed.cu), which ranks exchange, too (ranks/halo.cu). No kernels.

#pragma once

constexpr int COMPRESSED_COLUMNS = 128, GROUPS = COMPRESSED_COLUMNS / 32, HEAD_WORDS = GROUPS + 1;
constexpr int ROW_BYTES = 576;  // head and 128 floats, in whole units of 64 bytes, which memory reads at once
constexpr int SECTOR = 32, SECTOR_WORDS = SECTOR / 4;  // bytes and words of the units in which rows are packed

// Sectors of a compressed row, from the last word of its head.
__device__ inline int sectors_of(unsigned counts) {
  return (HEAD_WORDS + (counts >> 24) + SECTOR_WORDS - 1) / SECTOR_WORDS;
}

// Sectors of the compressed row that begins here.
__device__ inline int sectors_of(const unsigned char* row) {
  return sectors_of(__ldg(reinterpret_cast<const unsigned*>(row) + GROUPS));
}
