/** Which part of the model's SSM state a rank owns (spec 5, 7.2). */
export interface SsmDims {
  readonly nheads: number;
  readonly headdim: number;
  readonly dState: number;
  readonly ngroups: number;
  readonly dConv: number;
}

/** The part of the SSM layers and heads that one rank owns. */
export interface SsmLayout {
  readonly globalRank: number;
  readonly tpSize: number;
  readonly tpRank: number;
  readonly layerStart: number;
  readonly numLayers: number;
  readonly dims: SsmDims;
}
