/** Kinds of attention state that the content tests are made of: quantised data with scales, a latent with its rope part. */
import type { ContentPart } from './content-engine.js';

export const data: ContentPart = { planes: 2, perHead: true, perToken: true, dim: 3, elementBytes: 1 };
export const scale: ContentPart = {
  content: 'scale',
  planes: 2,
  perHead: true,
  perToken: true,
  dim: null,
  elementBytes: 4,
};
export const latent: ContentPart = { planes: 1, perHead: false, perToken: true, dim: 6, elementBytes: 2 };
export const rope: ContentPart = { ...latent, content: 'rope', dim: 2 };
