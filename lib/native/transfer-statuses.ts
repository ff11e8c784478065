/** What native code's numbers of a transfer's status mean; those that prove every end quiet never say the last one. */
export const transferStatuses = ['active', 'done', 'failed-quiet', 'failed-active'] as const;
