/** Which part of the model's attention state a rank owns (spec 1.5.1, 7.1). */
export interface KvLayout {
  readonly numLayersGlobal: number;
  readonly numKvHeadsGlobal: number;
  readonly headDim: number;
  readonly tpSize: number;
  readonly tpRank: number;
  readonly ppSize: number;
  readonly ppRank: number;
  readonly globalRank: number;
  /** First attention layer of this rank and one past its last, in global numbering. */
  readonly layerStart: number;
  readonly layerEnd: number;
}
